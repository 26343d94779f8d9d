// nvlinks.hpp: the NVLinks between GPUs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>

namespace explore {

// One row per GPU, named by its PCI address ("0000:1b:00.0"): the number of active NVLinks to each GPU, null for
// itself. Two GPUs on NVSwitches have as many as the one with fewer links to switches. The numbers come from NVML,
// NVIDIA's management library, which comes with the driver; null if it is missing or does not know a GPU.
nlohmann::json nvlinks(std::span<const std::string> pci, const std::string& library = "libnvidia-ml.so.1");

}  // namespace explore
