#include "explore/probes.hpp"

#include <multinode/base/files.hpp>
#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <sys/utsname.h>

#include <sstream>

namespace explore {

using multinode::read_text;

nlohmann::json read_versions(const std::filesystem::path& root) {
  nlohmann::json versions = nlohmann::json::object();
  for (const auto& [name, version] : multinode::versions()) versions[name] = version;
  utsname names{};
  uname(&names);
  versions["kernel"] = names.release;
  std::istringstream lines(read_text(root / "etc/os-release").value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("PRETTY_NAME=")) {
      std::erase(line, '"');
      versions["system"] = line.substr(line.find('=') + 1);
    }
  return versions;
}

}  // namespace explore
