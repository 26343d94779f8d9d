// gpus.hpp: the GPUs that this process can use.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

namespace explore {

// Version of NVIDIA's kernel driver, from ROOT/proc/driver/nvidia/version; "none" if it is not loaded.
std::string nvidia_driver(const std::filesystem::path& root);

// The node's GPUs, as the driver lists them in ROOT/proc/driver/nvidia/gpus: an array of {name, uuid, pci}.
nlohmann::json gpus_of_driver(const std::filesystem::path& root);

// Members: driver; devices, an array of {name, uuid, pci, memory_bytes}; none_because if devices is empty; and if CUDA
// sees several devices, peers and (with NVML) nvlinks. peers has one row per device with one value per device: null for
// itself, false if it cannot access the other's memory directly, else CUDA's performance rank of the link. Devices come
// from CUDA, in its order and limited by CUDA_VISIBLE_DEVICES; in a build without CUDA, from the driver.
nlohmann::json read_gpus(const std::filesystem::path& root);

}  // namespace explore
