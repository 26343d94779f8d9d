// nvlinks.hpp: the NVLinks between GPUs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>

namespace explore {

// For each of the GPUs, named by PCI address ("0000:1b:00.0"), a row of its active NVLinks to each: null for itself,
// else their number. Over an NVSwitch two GPUs have as many as the one with fewer has to switches. From NVIDIA's
// management library, NVML, which comes with the driver; null where it is not there or does not know a GPU.
nlohmann::json nvlinks(std::span<const std::string> pci, const std::string& library = "libnvidia-ml.so.1");

}  // namespace explore
