// identity.hpp: the devices of this machine as CUDA names them. A device is its number here.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace emulated_gpu {

inline constexpr const char* device_name = "Emulated GPU";
inline constexpr std::size_t device_memory = std::size_t{16} << 30;  // what is not written costs nothing
inline constexpr int compute_major = 9, compute_minor = 0;

inline std::optional<int> whole_number(const std::string& text, int most) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int value = std::stoi(text);
  return value <= most ? std::optional(value) : std::nullopt;
}

// The number of devices in EMULATED_GPUS; none if it is not a number.
inline std::optional<int> devices_of_machine() {
  const char* count = std::getenv("EMULATED_GPUS");
  return count ? whole_number(count, 64) : 0;
}

// with-gpus --check
inline bool checks() {
  static const bool wanted = [] {
    const char* text = std::getenv("EMULATED_GPU_CHECK");
    return text && std::string_view(text) == "1";
  }();
  return wanted;
}

inline std::array<unsigned char, 16> uuid_bytes(int device) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::array<unsigned char, 16> bytes{};
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char* at = host; *at; ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 0x100000001b3;
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(hash >> (8 * i));
  bytes[15] = static_cast<unsigned char>(device);
  return bytes;
}
inline std::string uuid(int device) {
  std::string text = "GPU-";
  const auto bytes = uuid_bytes(device);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
  return text;
}
inline std::string pci_bus_id(int device) { return fmt::format("0000:00:{:02x}.0", device); }

}  // namespace emulated_gpu
