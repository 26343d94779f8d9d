// perceptron_gpu.hpp: the perceptron of perceptron.hpp on one GPU: cuBLAS and a few small kernels, on one stream.
#pragma once

#include "perceptron.hpp"

#include <multinode/device.hpp>

#include <cublas_v2.h>

#include <memory>

namespace model {

// Throws std::runtime_error unless `code` is CUBLAS_STATUS_SUCCESS.
void check(cublasStatus_t code, multinode::source_location at = multinode::source_location::current());

// The functions of Perceptron with the same names do the same. All spans are device memory, and what is done with it
// goes on stream(); forward() and copy_parameters() wait for it, the others do not.
template <class T>
class PerceptronGpu {
 public:
  using value_type = T;

  PerceptronGpu(std::vector<std::size_t> sizes, std::size_t capacity);
  ~PerceptronGpu();
  PerceptronGpu(const PerceptronGpu&) = delete;
  PerceptronGpu& operator=(const PerceptronGpu&) = delete;

  std::span<const std::size_t> counts() const { return counts_; }
  std::span<T> parameter(std::size_t i) { return parameters_.at(i)->span(); }
  std::vector<T> copy_parameters() const;
  void initialize(std::uint64_t seed);
  std::span<T> gradient_storage() { return gradient_storage_.span(); }
  void set_gradients(std::vector<std::span<T>> gradients);
  Score forward(const data::Batch& batch, const Dropout& dropout);
  void backward(const std::function<void(std::size_t)>& ready);
  void update(double learning_rate, double momentum);

  cudaStream_t stream() const { return stream_.get(); }
  void scale(std::span<T> elements, T factor);

 private:
  using Buffer = std::unique_ptr<multinode::DeviceBuffer<T>>;

  std::vector<std::size_t> sizes_, counts_;
  multinode::Stream stream_;
  cublasHandle_t blas_ = nullptr;
  std::vector<Buffer> parameters_, velocity_;
  multinode::DeviceBuffer<T> gradient_storage_;
  std::vector<std::span<T>> gradients_;
  std::vector<Buffer> units_, errors_;  // of each layer: capacity x size
  multinode::DeviceBuffer<std::uint8_t> pixels_, labels_;
  multinode::DeviceBuffer<std::uint32_t> samples_;
  multinode::DeviceBuffer<T> losses_;             // of each sample
  multinode::DeviceBuffer<std::uint8_t> rights_;  // likewise
  std::size_t batch_ = 0;
  T kept_scale_ = 1;
};

}  // namespace model
