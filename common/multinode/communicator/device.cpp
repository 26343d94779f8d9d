// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/data_type.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/node/devices.hpp>

#include <dlfcn.h>

#include <cstdio>

namespace multinode {

#ifdef MULTINODE_HAVE_CUDA

const char* emulated_gpus() noexcept {
  using Description = const char*();
  const auto description = reinterpret_cast<Description*>(dlsym(RTLD_DEFAULT, "emulated_gpu_description"));
  return description ? description() : nullptr;
}

namespace {

bool means_no_gpu(cudaError_t code) {
  return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary;
}

// What to do about an error of the machine, not of the program.
const char* advice(cudaError_t code) {
  switch (code) {
    case cudaErrorSystemNotReady:
      return "; is Fabric Manager running (systemctl status nvidia-fabricmanager)?";
    case cudaErrorSystemDriverMismatch:
      return "; libcuda and the kernel module have different versions: reload the module or reboot (nvidia-smi)";
    case cudaErrorCompatNotSupportedOnDevice:
      return "; this GPU needs the driver's own libcuda: remove the folder cuda/compat from LD_LIBRARY_PATH";
    case cudaErrorNoKernelImageForDevice:
      return "; built for other GPUs: configure again with -DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorDevicesUnavailable:
      return "; another process has the GPU for itself (nvidia-smi)";
    case cudaErrorUnknown:
      return "; is the module nvidia_uvm loaded (nvidia-modprobe -u, dmesg)?";
    default:
      return "";
  }
}

}  // namespace

Gpus visible_gpus() {
  Gpus gpus{"CUDA"};
  try {
    int count = 0;
    check(cudaGetDeviceCount(&count));
    for (int device = 0; device < count; ++device) {
      cudaDeviceProp properties{};
      char pci[32] = {}, byte[4];
      check(cudaGetDeviceProperties(&properties, device));
      check(cudaDeviceGetPCIBusId(pci, sizeof pci, device));
      std::string uuid = "GPU-";
      for (int i = 0; i < 16; ++i) {
        std::snprintf(byte, sizeof byte, "%s%02hhx", i % 2 == 0 && i > 3 && i < 11 ? "-" : "",
                      properties.uuid.bytes[i]);
        uuid += byte;
      }
      gpus.devices.push_back({pci, properties.name, uuid, properties.totalGlobalMem});
    }
  } catch (const std::runtime_error& e) {
    gpus.none_because = e.what();
    gpus.broken = !dynamic_cast<const HardwareAbsent*>(&e);
  }
  return gpus;
}

int device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  cudaGetLastError();  // clears the error, which the next call would report
  if (!means_no_gpu(code)) check(code);
  return 0;
}

void check(cudaError_t code, source_location at) {
  if (code == cudaSuccess) return;
  const std::string text = std::string(cudaGetErrorName(code)) + ": " + cudaGetErrorString(code);
  if (means_no_gpu(code)) throw HardwareAbsent("no GPU can be used here (" + text + ")");
  throw std::runtime_error(place(at) + text + advice(code));
}

#else

const char* emulated_gpus() noexcept { return nullptr; }
int device_count() { return 0; }
Gpus visible_gpus() { return gpus_of_driver("/"); }

#endif

#ifdef MULTINODE_HAVE_NCCL

void check(ncclResult_t code, source_location at) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const std::string last = ncclGetLastError(nullptr);
  throw std::runtime_error(place(at) + "NCCL: " + ncclGetErrorString(code) + (last.empty() ? "" : " (" + last + ")"));
}

ncclDataType_t nccl_type(DataType type) {
  static constexpr ncclDataType_t types[] = {ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16, ncclInt8,
                                             ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,    ncclUint64};
  return types[static_cast<std::size_t>(type)];
}

ncclRedOp_t nccl_operation(Reduction reduction) {
  static constexpr ncclRedOp_t operations[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
  return operations[static_cast<std::size_t>(reduction)];
}

#endif

}  // namespace multinode
