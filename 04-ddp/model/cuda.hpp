// cuda.hpp: the Device of perceptron.hpp that is one GPU: cuBLAS and a few small kernels, on one stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perceptron.hpp"

#include <multinode/communicator/device.hpp>
#include <multinode/world.hpp>

#include <cublas_v2.h>

#include <array>
#include <functional>

namespace model {

// Throws std::runtime_error unless `code` is CUBLAS_STATUS_SUCCESS.
void check(cublasStatus_t code, multinode::source_location at = multinode::source_location::current());

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

class Cuda {
 public:
  static constexpr bool on_gpu = true;
  static constexpr std::size_t width = 4;  // the numbers of one Philox block

  Cuda();
  ~Cuda();
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;
  cudaStream_t stream() const { return stream_.get(); }

  template <class T>
  class Buffer : public multinode::DeviceBuffer<T> {
   public:
    explicit Buffer(std::size_t count) : multinode::DeviceBuffer<T>(count) {
      multinode::check(cudaMemset(this->data(), 0, count * sizeof(T)));
      multinode::check(cudaStreamSynchronize(nullptr));  // other streams do not wait for it
    }
  };

  // Through pinned memory, two loads by turns: load() may wait for the last but one, so that the host is never more
  // than two steps ahead.
  template <class T>
  class Input {
   public:
    explicit Input(std::size_t capacity) : there_(capacity), pinned_{Pinned(capacity), Pinned(capacity)} {}
    const T* data() const { return there_.data(); }
    void load(Cuda& cuda, std::span<const T> elements) {
      Pinned& pinned = pinned_[loads_++ % pinned_.size()];
      if (loads_ > pinned_.size()) cuda.wait_(pinned.copied.get());
      if (!elements.empty()) {
        std::ranges::copy(elements, pinned.room.data());
        there_.copy_from(pinned.room.span().first(elements.size()), cuda.stream());
      }
      pinned.copied.record(cuda.stream());
    }

   private:
    struct Pinned {
      PinnedBuffer<T> room;
      multinode::Event copied;
      explicit Pinned(std::size_t capacity) : room(capacity) {}
    };
    Buffer<T> there_;
    std::array<Pinned, 2> pinned_;
    std::size_t loads_ = 0;
  };

  template <class Op>
  void each(std::size_t count, Op op);
  template <class Op>
  void rows(std::size_t count, Op op);
  template <class T>
  void product(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const T* a, const T* b,
               T keep, T* c);
  // As a product: cuBLAS reads the rows of a from the first to the last byte.
  template <class T>
  void column_sums(std::size_t rows, std::size_t columns, const T* ones, const T* a, T keep, T* sums) {
    product(Transpose::none, 1, columns, rows, ones, a, keep, sums);
  }

  template <class T>
  void copy(std::span<const T> from, T* to) {
    multinode::check(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyDefault, stream()));
  }
  void wait() {  // for what is on the stream
    event_.record(stream());
    wait_(event_.get());
  }

  // Puts the communicator's later calls on the stream, and limits waiting by the World's deadline.
  void attach(multinode::World& world, multinode::Communicator& communicator);
  void sum(multinode::Communicator& communicator, std::span<double> numbers);

 private:
  multinode::Stream stream_;
  cublasHandle_t blas_{};
  multinode::Event event_;
  std::function<void(cudaEvent_t)> wait_;    // without attach() it has no deadline
  multinode::DeviceBuffer<double> numbers_;  // that are summed
  PinnedBuffer<double> host_numbers_;
};

template <class T>  // float, double
using PerceptronGpu = PerceptronOn<T, Cuda>;
// Compiled in cuda.cu, because they launch kernels.
extern template class PerceptronOn<float, Cuda>;
extern template class PerceptronOn<double, Cuda>;

// The reducer's ScaleOnDevice.
void scale(Cuda& cuda, std::span<float> elements, float factor);
void scale(Cuda& cuda, std::span<double> elements, double factor);

}  // namespace model
