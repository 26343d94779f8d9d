// device.hpp: GPU error checks, and objects that own device memory, streams and events. Without CUDA it has only
// device_count(), visible_gpus() and emulated_gpus().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/check.hpp>

#include <cstddef>
#include <span>
#include <string>

#ifdef MULTINODE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif
#ifdef MULTINODE_HAVE_NCCL
#include <nccl.h>
#endif

namespace multinode {

// The number of GPUs that this process can use: 0 without a GPU, a driver, or CUDA in this build. Throws
// std::runtime_error if there are GPUs that CUDA cannot use.
int device_count();

// The GPUs that CUDA sees, in its order; in a build without CUDA, those that the driver lists.
struct Gpus visible_gpus();  // node/devices.hpp

// A description if the GPUs are emulated (tools/emulated-gpu): "4 emulated GPUs ..."; else nullptr. Times measured
// on emulated GPUs are meaningless.
const char* emulated_gpus() noexcept;

#ifdef MULTINODE_HAVE_CUDA

// Unless `code` is cudaSuccess, throws HardwareAbsent if there is no GPU or driver, else std::runtime_error with the
// caller's source location.
void check(cudaError_t code, source_location at = source_location::current());

// A stream of the current device that does not synchronize with the default stream.
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

// An event of the current device: without timing, unless `flags` is cudaEventDefault.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) { check(cudaEventCreateWithFlags(&event_, flags)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) {
    check(cudaEventRecord(event_, stream));
    recorded_ = true;
  }
  void hold_back(cudaStream_t stream) const {
    if (!recorded_) throw std::logic_error("Event::hold_back() before record()");  // for CUDA it has happened
    check(cudaStreamWaitEvent(stream, event_, 0));
  }

 private:
  cudaEvent_t event_{};
  bool recorded_ = false;
};

// `count` uninitialized elements of memory of the current device. The copies are asynchronous: `host` must stay valid
// until `stream` has done them, and has at most size() elements.
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
  std::span<T> span() const { return {data_, count_}; }  // device memory: not for use by the host
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
// Throws std::runtime_error unless `code` is ncclSuccess or ncclInProgress.
void check(ncclResult_t code, source_location at = source_location::current());

// NCCL calls between ncclGroupStart and ncclGroupEnd become one. The destructor ends the group if a call throws: an
// open group would swallow an abort, and all later calls.
class NcclGroup {
 public:
  NcclGroup() { check(ncclGroupStart()); }
  ~NcclGroup() {
    if (open_) ncclGroupEnd();
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ncclResult_t end() {
    open_ = false;
    return ncclGroupEnd();
  }

 private:
  bool open_ = true;
};

// Defined in data_type.hpp, which nvcc need not compile.
enum class DataType;
enum class Reduction;
ncclDataType_t nccl_type(DataType type);
ncclRedOp_t nccl_operation(Reduction reduction);
#endif

}  // namespace multinode
