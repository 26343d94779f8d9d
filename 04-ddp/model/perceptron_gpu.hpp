// perceptron_gpu.hpp: the perceptron of perceptron.hpp on one GPU: cuBLAS and a few small kernels, on one stream.
#pragma once

#include "device_perceptron.hpp"

#include <multinode/communicator/device.hpp>

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace model {

// Throws std::runtime_error unless `code` is CUBLAS_STATUS_SUCCESS.
void check(cublasStatus_t code, multinode::source_location at = multinode::source_location::current());

// The Device of device_perceptron.hpp: everything goes on one stream.
class Cuda {
 public:
  template <class T>
  class Buffer : public multinode::DeviceBuffer<T> {
   public:
    explicit Buffer(std::size_t count) : multinode::DeviceBuffer<T>(count) {
      multinode::check(cudaMemset(this->data(), 0, count * sizeof(T)));
      multinode::check(cudaStreamSynchronize(nullptr));  // other streams do not wait for it
    }
  };

  explicit Cuda(bool tf32 = false);  // see Architecture
  ~Cuda();
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;
  cudaStream_t stream() const { return stream_.get(); }

  template <class Op>
  void each(std::size_t count, Op op);
  template <class Op>
  void rows(std::size_t count, Op op);
  template <class T, class U>
  void product(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const U* a, const U* b,
               T keep, T* c);

 private:
  bool tf32_;
  multinode::Stream stream_;
  // Given to cuBLAS, which would else allocate its own when it needs it: that must not happen while a graph is
  // recorded.
  multinode::DeviceBuffer<std::byte> workspace_;
  cublasHandle_t blas_{};
};

// `count` elements of host memory that the GPU copies from and to without the CPU's help.
template <class T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t count) : count_(count) {
    multinode::check(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  T* data() const { return data_; }
  std::span<T> span() const { return {data_, count_}; }

 private:
  T* data_{};
  std::size_t count_;
};

// Blocks in a GPU's memory, and the host's memory for copies of them: what a checkpoint is written from, and read into.
class HostCopies {
 public:
  HostCopies(std::vector<ddp::NamedBlock> there, cudaStream_t stream);
  const std::vector<ddp::NamedBlock>& here() const { return here_; }
  // Queued on the stream.
  void fetch() const { copy(there_, here_, cudaMemcpyDeviceToHost); }
  void send() const { copy(here_, there_, cudaMemcpyHostToDevice); }

 private:
  void copy(const std::vector<ddp::NamedBlock>& from, const std::vector<ddp::NamedBlock>& to,
            cudaMemcpyKind kind) const;
  std::vector<ddp::NamedBlock> there_, here_;
  std::deque<PinnedBuffer<std::byte>> room_;
  cudaStream_t stream_;
};

// The functions of Perceptron with the same names do the same. All spans but the batch's are device memory, and what is
// done with it goes on stream(); copy_...(), initialize() and take_totals() wait for it, and load() may wait for what
// the last but one put there, so that the host is never more than two steps ahead.
template <class T, class U = T>  // float, double; float with __nv_bfloat16, see PerceptronOn
class PerceptronGpu : public PerceptronOn<T, U, Cuda> {
 public:
  PerceptronGpu(Architecture architecture, std::size_t capacity);

  std::vector<T> copy_parameters() { return copy(this->parameters_.span()); }  // one behind the other
  std::vector<T> copy_gradients() { return copy(this->gradients_); }
  void initialize(std::uint64_t seed);
  void scale(std::span<T> elements, T factor);  // the reducer's ScaleOnDevice

  // A step is load(), and then the others, which take all that changes from step to step from the device's memory: they
  // can be recorded as a CUDA graph (StepGraphs) and repeated. The batch can go when load() returns.
  void load(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate);
  using PerceptronOn<T, U, Cuda>::forward;
  void forward(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate = 0) {
    load(batch, dropout, learning_rate);
    forward();
  }

  // Of all forward passes since the last call.
  Totals take_totals();

  // Sums numbers of the host over all ranks. Collective, called by all ranks.
  void sum(multinode::Communicator& communicator, std::span<double> numbers);

  cudaStream_t stream() const { return this->device_.stream(); }
  void wait() {  // for what is on the stream
    event_.record(stream());
    wait_(event_.get());
  }

  // How the host waits for the GPU. The default, cudaEventSynchronize, has no deadline.
  void set_wait(std::function<void(cudaEvent_t)> wait) { wait_ = std::move(wait); }

 private:
  std::vector<T> copy(std::span<T> memory);
  struct Stage {  // a batch on its way
    PinnedBuffer<T> inputs, targets;
    PinnedBuffer<std::uint8_t> labels;
    PinnedBuffer<std::uint32_t> samples;
    PinnedBuffer<StepSettings<T>> settings;
    multinode::Event copied;
    explicit Stage(const PerceptronGpu& gpu);
  };

  std::array<Stage, 2> stages_;
  std::size_t loads_ = 0;
  PinnedBuffer<Totals> host_totals_;
  multinode::DeviceBuffer<double> numbers_;  // that are summed
  PinnedBuffer<double> host_numbers_;
  multinode::Event event_;
  std::function<void(cudaEvent_t)> wait_;
};

// Compiled in perceptron_gpu.cu, because they launch kernels.
extern template class PerceptronOn<float, float, Cuda>;
extern template class PerceptronOn<double, double, Cuda>;
extern template class PerceptronOn<float, __nv_bfloat16, Cuda>;

// CUDA graphs of steps. The first step is executed directly, so that libraries allocate and connect; the second is
// recorded; after that the record is repeated, which is one call instead of some thirty. Everything in a step must be
// queued on `stream`, or on streams that wait for it by an event and that it waits for (NCCL's, see
// Communicator::set_stream), and must depend on nothing but device memory and the size of the global batch: all ranks
// then record in the same step, however unevenly they share a batch. A repetition does not execute the step's code on
// the host (the reducer's bookkeeping). Destroy it before the communicator.
class StepGraphs {
 public:
  StepGraphs() = default;
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  void run(std::size_t global_batch, cudaStream_t stream, const std::function<void()>& step);

 private:
  std::map<std::size_t, cudaGraphExec_t> graphs_;  // null: it was carried out once
};

}  // namespace model
