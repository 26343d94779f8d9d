#include "explore/probes.hpp"

#include <multinode/base/files.hpp>
#include <multinode/communicator/device.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <sstream>

namespace explore {

using multinode::names_in;
using multinode::read_text;

std::string nvidia_driver(const std::filesystem::path& root) {
  const std::optional<std::string> text = read_text(root / "proc/driver/nvidia/version");
  if (!text) return "none";
  // NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
  std::istringstream words(*text);
  for (std::string word; words >> word;)
    if (word.find_first_not_of("0123456789.") == word.npos && word.find('.', 1) < word.size() - 1) return word;
  return "unknown";
}

nlohmann::json gpus_of_driver(const std::filesystem::path& root) {
  nlohmann::json gpus = nlohmann::json::array();
  const std::filesystem::path folder = root / "proc/driver/nvidia/gpus";
  for (const std::string& pci : names_in(folder)) {
    nlohmann::json gpu = {{"name", "unknown"}, {"uuid", "unknown"}, {"pci", pci}};
    std::istringstream lines(read_text(folder / pci / "information").value_or(""));
    for (std::string line; std::getline(lines, line);) {
      const std::size_t colon = line.find(':');
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      if (colon == std::string::npos || begin == std::string::npos) continue;
      if (line.starts_with("Model")) gpu["name"] = line.substr(begin);
      if (line.starts_with("GPU UUID")) gpu["uuid"] = line.substr(begin);
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

#ifdef MULTINODE_HAVE_CUDA

namespace {

std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

#endif

nlohmann::json read_gpus(const std::filesystem::path& root) {
  nlohmann::json gpus = {{"driver", nvidia_driver(root)}, {"devices", gpus_of_driver(root)}};
  const char* why = "the driver lists no GPU";
#ifdef MULTINODE_HAVE_CUDA
  nlohmann::json& devices = gpus["devices"] = nlohmann::json::array();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  why = error == cudaSuccess ? "CUDA sees no device" : cudaGetErrorString(error);
  for (int i = 0; error == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties{};
    char pci[32] = {};
    multinode::check(cudaGetDeviceProperties(&properties, i));
    multinode::check(cudaDeviceGetPCIBusId(pci, sizeof pci, i));
    devices.push_back({{"name", properties.name},
                       {"uuid", text_of(properties.uuid)},
                       {"pci", pci},
                       {"memory_bytes", properties.totalGlobalMem}});
  }
#endif
  if (gpus["devices"].empty()) gpus["none_because"] = gpus["driver"] == "none" ? "NVIDIA's driver is not loaded" : why;
  return gpus;
}

}  // namespace explore
