// perceptron_gpu.hpp: the perceptron of perceptron.hpp on one GPU: cuBLAS and a few small kernels, on one stream.
#pragma once

#include "perceptron.hpp"

#include <multinode/device.hpp>

#include <cublas_v2.h>

#include <memory>

namespace model {

// Throws std::runtime_error unless `code` is CUBLAS_STATUS_SUCCESS.
void check(cublasStatus_t code, multinode::source_location at = multinode::source_location::current());

// Sgd of optimizer.hpp, without weight decay, for parameters in device memory.
template <class T>
class SgdGpu {
 public:
  explicit SgdGpu(const std::vector<ddp::NamedBlock>& parameters, double momentum);
  void update(std::size_t i, std::span<T> parameter, std::span<const T> gradient, double learning_rate,
              cudaStream_t stream);

 private:
  T momentum_;
  std::vector<std::unique_ptr<multinode::DeviceBuffer<T>>> velocity_;
};

// The functions of Perceptron with the same names do the same, for cross-entropy and ReLU. All spans but the batch's
// are device memory, and what is done with it goes on stream(); forward() and copy_parameters() wait for it, the others
// do not.
template <class T>
class PerceptronGpu {
 public:
  using value_type = T;
  using Sgd = SgdGpu<T>;

  PerceptronGpu(Architecture architecture, std::size_t capacity);
  ~PerceptronGpu();
  PerceptronGpu(const PerceptronGpu&) = delete;
  PerceptronGpu& operator=(const PerceptronGpu&) = delete;

  std::vector<ddp::NamedBlock> parameters();
  std::span<T> parameter(std::size_t i) { return parameters_.at(i)->span(); }
  std::vector<T> copy_parameters() const;
  void initialize(std::uint64_t seed);
  std::span<T> gradient_storage() { return gradient_storage_.span(); }
  void set_gradients(std::vector<std::span<T>> gradients);
  Score forward(const data::Batch<T>& batch, const Dropout& dropout);
  void backward(const std::function<void(std::size_t)>& ready, bool add = false);
  void update(SgdGpu<T>& optimizer, double learning_rate);

  cudaStream_t stream() const { return stream_.get(); }

 private:
  using Buffer = std::unique_ptr<multinode::DeviceBuffer<T>>;

  Architecture architecture_;
  std::vector<std::size_t> sizes_;
  multinode::Stream stream_;
  cublasHandle_t blas_ = nullptr;
  std::vector<Buffer> parameters_;
  multinode::DeviceBuffer<T> gradient_storage_;
  std::vector<std::span<T>> gradients_;
  std::vector<Buffer> units_, errors_;  // of each layer: capacity x size
  multinode::DeviceBuffer<std::uint8_t> labels_;
  multinode::DeviceBuffer<std::uint32_t> samples_;
  multinode::DeviceBuffer<T> losses_;             // of each sample
  multinode::DeviceBuffer<std::uint8_t> rights_;  // likewise
  std::size_t batch_ = 0;
  T kept_scale_ = 1;
};

}  // namespace model
