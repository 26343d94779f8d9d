// nvml.hpp: NVML, NVIDIA's management library, which comes with the driver. It is loaded when it is used, and declared
// here as far as it is used, so that no CUDA Toolkit is needed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <array>
#include <optional>
#include <string>

namespace multinode {

class Nvml {
 public:
  static constexpr int success = 0;
  using Device = struct nvmlDevice_st*;
  struct PciInfo {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
  };

  explicit Nvml(const std::string& library = "libnvidia-ml.so.1")
      : library_(dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    ready = call("nvmlInit_v2") == success;
  }
  ~Nvml() {
    if (ready) call("nvmlShutdown");
    if (library_) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Whether the library has this function: an older driver lacks some.
  bool has(const char* name) const { return library_ && dlsym(library_, name); }
  // Calls the function with arguments of exactly these types. Returns NVML's status; -1 if there is no such function.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    return has(name) ? reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name))(arguments...) : -1;
  }
  // The value to which the last argument points.
  template <class Value, class... Arguments>
  std::optional<Value> get(const char* name, Arguments... arguments) const {
    Value value{};
    return call(name, arguments..., &value) == success ? std::optional(value) : std::nullopt;
  }
  // The text that the function writes; "unknown" if it fails.
  template <class... Arguments>
  std::string text(const char* name, Arguments... arguments) const {
    std::array<char, 96> buffer{};
    const unsigned size = buffer.size();
    return call(name, arguments..., buffer.data(), size) == success ? buffer.data() : "unknown";
  }
  bool ready = false;

 private:
  void* library_;
};

}  // namespace multinode
