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
  switch (type) {
    case DataType::float32:
      return ncclFloat32;
    case DataType::float64:
      return ncclFloat64;
    case DataType::float16:
      return ncclFloat16;
    case DataType::bfloat16:
      return ncclBfloat16;
    case DataType::int8:
      return ncclInt8;
    case DataType::uint8:
      return ncclUint8;
    case DataType::int32:
      return ncclInt32;
    case DataType::uint32:
      return ncclUint32;
    case DataType::int64:
      return ncclInt64;
    case DataType::uint64:
      return ncclUint64;
  }
  throw std::invalid_argument("no such data type");
}

ncclRedOp_t nccl_operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return ncclSum;
    case Reduction::product:
      return ncclProd;
    case Reduction::min:
      return ncclMin;
    case Reduction::max:
      return ncclMax;
    case Reduction::average:
      return ncclAvg;
  }
  throw std::invalid_argument("no such reduction");
}

#endif

}  // namespace multinode
