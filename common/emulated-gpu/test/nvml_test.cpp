// NVML and CUDA name the same devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <multinode/node/nvml.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace nvml_test {

using multinode::Nvml;
using Device = Nvml::Device;

const int four_devices = setenv("EMULATED_GPUS", "4", 1);
constexpr int invalid_argument = 2, not_found = 6, insufficient_size = 7;

TEST(EmulatedNvml, NamesTheDevicesAsCudaDoes) {
  const Nvml nvml(EMULATED_GPU "/libnvidia-ml.so.1");
  ASSERT_TRUE(nvml.ready);
  EXPECT_EQ(nvml.get<unsigned>("nvmlDeviceGetCount_v2"), 4U);
  for (int i = 0; i < 4; ++i) {
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, i), cudaSuccess);
    std::array<char, 32> bus{};
    ASSERT_EQ(cudaDeviceGetPCIBusId(bus.data(), bus.size(), i), cudaSuccess);
    std::string uuid = "GPU";
    for (std::size_t at = 0; at < 16; ++at) {
      if (at == 0 || at == 4 || at == 6 || at == 8 || at == 10) uuid += "-";
      std::array<char, 3> hex{};
      std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(properties.uuid.bytes[at]));
      uuid += hex.data();
    }
    const auto device = nvml.get<Device>("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned>(i));
    ASSERT_TRUE(device);
    EXPECT_EQ(nvml.get<Device>("nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(bus.data())), device);
    EXPECT_EQ(nvml.text("nvmlDeviceGetName", *device), properties.name);
    EXPECT_EQ(nvml.text("nvmlDeviceGetUUID", *device), uuid);
    EXPECT_EQ(std::string(nvml.get<Nvml::PciInfo>("nvmlDeviceGetPciInfo_v3", *device)->id),
              "0000" + std::string(bus.data()));
  }
}

TEST(EmulatedNvml, RefusesWhatItDoesNotHave) {
  const Nvml nvml(EMULATED_GPU "/libnvidia-ml.so.1");
  Device device{};
  EXPECT_EQ(nvml.call("nvmlDeviceGetHandleByIndex_v2", 4U, &device), invalid_argument);
  EXPECT_EQ(nvml.call("nvmlDeviceGetHandleByPciBusId_v2", "0000:ff:00.0", &device), not_found);
  ASSERT_EQ(nvml.call("nvmlDeviceGetHandleByIndex_v2", 0U, &device), Nvml::success);
  char small[4];
  EXPECT_EQ(nvml.call("nvmlDeviceGetName", device, small, 4U), insufficient_size);
}

}  // namespace nvml_test
