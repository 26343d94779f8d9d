#include <multinode/device.hpp>

namespace multinode {

#ifdef MULTINODE_HAVE_CUDA

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // the error is not left for the next call to find
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

int device_count() noexcept { return 0; }

#endif

#ifdef MULTINODE_HAVE_NCCL

void check(ncclResult_t code, source_location at) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const std::string last = ncclGetLastError(nullptr);
  throw std::runtime_error(place(at) + "NCCL: " + ncclGetErrorString(code) + (last.empty() ? "" : " (" + last + ")"));
}

#endif

}  // namespace multinode
