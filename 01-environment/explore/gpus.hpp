// gpus.hpp: the GPUs that this process can use.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

namespace explore {

// Version of NVIDIA's kernel driver, from ROOT/proc/driver/nvidia/version; "none" where it is not loaded.
std::string nvidia_driver(const std::filesystem::path& root);

// The node's GPUs, as the driver lists them in ROOT/proc/driver/nvidia/gpus: an array of {name, uuid, pci}.
nlohmann::json gpus_of_driver(const std::filesystem::path& root);

// Members driver, devices (an array of {name, uuid, pci, memory_bytes}), where devices is empty none_because, and where
// CUDA sees several peers: for each device a row of what it has to each: null (it is itself), false (no direct access
// to its memory), or CUDA's performance rank of the link; then also nvlinks, if NVML is there. Devices come from CUDA,
// in its order, so CUDA_VISIBLE_DEVICES counts; in a build without CUDA, from the driver.
nlohmann::json read_gpus(const std::filesystem::path& root);

}  // namespace explore
