// device.hpp: the GPU: errors, memory, streams and events that give themselves back. Empty but for device_count()
// without CUDA.
#pragma once

#include <multinode/check.hpp>

#include <cstddef>
#include <span>

#ifdef MULTINODE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif
#ifdef MULTINODE_HAVE_NCCL
#include <nccl.h>
#endif

namespace multinode {

// GPUs that this process can use: 0 where there is no GPU, no driver, or no CUDA in this build.
int device_count() noexcept;

// What the GPUs here are, where they are stand-ins (common/host-nccl): "4 stand-ins of GPUs ..."; else nullptr. Nothing
// that runs on them has a speed worth showing.
const char* stand_in() noexcept;

#ifdef MULTINODE_HAVE_CUDA

// Throws HardwareAbsent where there is no GPU or driver, std::runtime_error otherwise, unless `code` is cudaSuccess.
void check(cudaError_t code, source_location at = source_location::current());

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_{};
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream)); }
  void hold_back(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_{};
};

// `count` elements of device memory.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::span<T> span() const { return {data_, count_}; }  // device memory: for kernels and NCCL, not for the host
  void copy_from(std::span<const T> host, cudaStream_t stream) {
    check(cudaMemcpyAsync(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream));
  }
  void copy_to(std::span<T> host, cudaStream_t stream) const {
    check(cudaMemcpyAsync(host.data(), data_, host.size_bytes(), cudaMemcpyDeviceToHost, stream));
  }

 private:
  T* data_{};
  std::size_t count_;
};

#endif
#ifdef MULTINODE_HAVE_NCCL
void check(ncclResult_t code, source_location at = source_location::current());

// Of data_type.hpp, which nvcc need not read.
enum class DataType;
enum class Reduction;
ncclDataType_t nccl_type(DataType type);
ncclRedOp_t nccl_operation(Reduction reduction);
#endif

}  // namespace multinode
