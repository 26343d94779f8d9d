#include <multinode/data_type.hpp>
#include <multinode/device.hpp>

#include <dlfcn.h>

namespace multinode {

#ifdef MULTINODE_HAVE_CUDA

const char* stand_in() noexcept {
  using Description = const char*();
  const auto description = reinterpret_cast<Description*>(dlsym(RTLD_DEFAULT, "host_nccl_description"));
  return description ? description() : nullptr;
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // clears the error, which the next call would report
  return 0;
}

void check(cudaError_t code, source_location at) {
  if (code == cudaSuccess) return;
  const std::string text = std::string(cudaGetErrorName(code)) + ": " + cudaGetErrorString(code);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary)
    throw HardwareAbsent("no GPU can be used here (" + text + ")");
  throw std::runtime_error(place(at) + text);
}

#else

const char* stand_in() noexcept { return nullptr; }
int device_count() noexcept { return 0; }

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
