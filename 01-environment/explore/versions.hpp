// versions.hpp: what software this process runs on.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

namespace explore {

// {name: version}: the versions that World compares, and the kernel and the distribution (ROOT/etc/os-release).
nlohmann::json read_versions(const std::filesystem::path& root);

}  // namespace explore
