#include "../ddp/philox.hpp"
#include "perceptron_gpu.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace model {
namespace {

constexpr unsigned threads = 256;

unsigned blocks_for(std::size_t elements) { return static_cast<unsigned>((elements + threads - 1) / threads); }

__device__ std::size_t index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }

// Adds the bias; a hidden layer then gets ReLU and dropout. samples == nullptr: the last layer.
template <class T>
__global__ void finish_layer(T* units, const T* bias, std::size_t batch, std::size_t size, const std::uint32_t* samples,
                             std::uint32_t layer, std::uint32_t threshold, T scale, std::uint32_t step,
                             std::uint64_t seed) {
  const std::size_t i = index();
  if (i >= batch * size) return;
  const std::size_t sample = i / size, unit = i % size;
  T value = units[i] + bias[unit];
  if (samples) {
    value = value < T(0) ? T(0) : value;  // not max(): it would take a NaN for 0
    if (threshold > 0) {
      const ddp::PhiloxWords random =
          ddp::philox({static_cast<std::uint32_t>(unit / 4), ddp::stream_dropout + layer, samples[sample], step}, seed);
      value *= random[unit % 4] < threshold ? T(0) : scale;
    }
  }
  units[i] = value;
}

// A thread a sample: softmax and cross-entropy of a few classes.
template <class T>
__global__ void softmax_cross_entropy(const T* units, const std::uint8_t* labels, std::size_t batch, std::size_t size,
                                      T* errors, T* losses, std::uint8_t* rights) {
  const std::size_t s = index();
  if (s >= batch) return;
  const T* const out = units + s * size;
  T* const error = errors + s * size;
  T largest = out[0], sum = 0;
  for (std::size_t j = 1; j < size; ++j) largest = out[j] > largest ? out[j] : largest;
  for (std::size_t j = 0; j < size; ++j) sum += error[j] = exp(out[j] - largest);
  const std::size_t label = labels[s];
  losses[s] = log(sum) + largest - out[label];
  rights[s] = out[label] == largest;
  for (std::size_t j = 0; j < size; ++j) error[j] = error[j] / sum - T(j == label);
}

// A thread a column, from the first row to the last: the same bits in every run.
template <class T>
__global__ void column_sums(const T* errors, std::size_t batch, std::size_t size, T* sums) {
  const std::size_t j = index();
  if (j >= size) return;
  T sum = 0;
  for (std::size_t s = 0; s < batch; ++s) sum += errors[s * size + j];
  sums[j] = sum;
}

template <class T>
__global__ void through_relu(T* errors, const T* units, std::size_t count, T scale) {
  const std::size_t i = index();
  if (i < count) errors[i] = units[i] > T(0) ? errors[i] * scale : T(0);
}

template <class T>
__global__ void descend(T* parameter, T* velocity, const T* gradient, std::size_t count, T rate, T keep) {
  const std::size_t i = index();
  if (i >= count) return;
  velocity[i] = keep * velocity[i] + gradient[i];
  parameter[i] -= rate * velocity[i];
}

cublasStatus_t gemm(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m, int n, int k, const float* one,
                    const float* x, int ldx, const float* y, int ldy, const float* keep, float* z, int ldz) {
  return cublasSgemm(h, a, b, m, n, k, one, x, ldx, y, ldy, keep, z, ldz);
}
cublasStatus_t gemm(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m, int n, int k, const double* one,
                    const double* x, int ldx, const double* y, int ldy, const double* keep, double* z, int ldz) {
  return cublasDgemm(h, a, b, m, n, k, one, x, ldx, y, ldy, keep, z, ldz);
}

// c (rows x columns) = op(a) op(b), row-major: cuBLAS is column-major and sees the transposes, so it gets b first.
template <class T>
void multiply(cublasHandle_t handle, bool transpose_a, bool transpose_b, std::size_t rows, std::size_t columns,
              std::size_t inner, const T* a, const T* b, T* c) {
  const auto number = [](std::size_t n) { return static_cast<int>(n); };
  const T one = 1, zero = 0;
  check(gemm(handle, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, number(columns),
             number(rows), number(inner), &one, b, number(transpose_b ? inner : columns), a,
             number(transpose_a ? rows : inner), &zero, c, number(columns)));
}

std::size_t elements_of(const std::vector<std::size_t>& sizes) {
  std::size_t total = 0;
  for (std::size_t l = 1; l < sizes.size(); ++l) total += sizes[l] * sizes[l - 1] + sizes[l];
  return total;
}

}  // namespace

void check(cublasStatus_t code, multinode::source_location at) {
  if (code != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(multinode::place(at) + "cuBLAS: " + cublasGetStatusString(code));
}

template <class T>
SgdGpu<T>::SgdGpu(const std::vector<ddp::NamedBlock>& parameters, double momentum)
    : momentum_(static_cast<T>(momentum)) {
  for (const ddp::NamedBlock& parameter : parameters) {
    velocity_.push_back(std::make_unique<multinode::DeviceBuffer<T>>(parameter.block.count));
    multinode::check(cudaMemset(velocity_.back()->data(), 0, parameter.block.bytes()));
  }
}

template <class T>
void SgdGpu<T>::update(std::size_t i, std::span<T> parameter, std::span<const T> gradient, double learning_rate,
                       cudaStream_t stream) {
  descend<<<blocks_for(parameter.size()), threads, 0, stream>>>(parameter.data(), velocity_.at(i)->data(),
                                                                gradient.data(), parameter.size(),
                                                                static_cast<T>(learning_rate), momentum_);
}

template <class T>
PerceptronGpu<T>::PerceptronGpu(Architecture architecture, std::size_t capacity)
    : architecture_(std::move(architecture)),
      sizes_(architecture_.sizes),
      gradient_storage_(elements_of(sizes_)),
      labels_(capacity),
      samples_(capacity),
      losses_(capacity),
      rights_(capacity) {
  if (architecture_.loss != Loss::cross_entropy || !architecture_.hidden_relu || architecture_.output_relu)
    throw std::logic_error("PerceptronGpu: it has cross-entropy, and ReLU behind hidden layers, alone");
  for (std::size_t l = 1; l < sizes_.size(); ++l) {
    parameters_.push_back(std::make_unique<multinode::DeviceBuffer<T>>(sizes_[l] * sizes_[l - 1]));
    parameters_.push_back(std::make_unique<multinode::DeviceBuffer<T>>(sizes_[l]));
  }
  for (const std::size_t size : sizes_) {
    units_.push_back(std::make_unique<multinode::DeviceBuffer<T>>(capacity * size));
    errors_.push_back(std::make_unique<multinode::DeviceBuffer<T>>(capacity * size));
  }
  check(cublasCreate(&blas_));
  check(cublasSetStream(blas_, stream()));
}

template <class T>
std::vector<ddp::NamedBlock> PerceptronGpu<T>::parameters() {
  std::vector<ddp::NamedBlock> named = Perceptron<T>(architecture_, 0).parameters();
  for (std::size_t i = 0; i < named.size(); ++i) named[i].block = parameter(i);
  return named;
}

template <class T>
PerceptronGpu<T>::~PerceptronGpu() {
  if (blas_) cublasDestroy(blas_);
}

template <class T>
std::vector<T> PerceptronGpu<T>::copy_parameters() const {
  std::vector<T> all(gradient_storage_.size());
  std::size_t at = 0;
  for (const Buffer& parameter : parameters_) {
    parameter->copy_to(std::span(all).subspan(at, parameter->size()), stream());
    at += parameter->size();
  }
  stream_.synchronize();
  return all;
}

template <class T>
void PerceptronGpu<T>::initialize(std::uint64_t seed) {
  Perceptron<T> there(architecture_, 0);  // the host's numbers, so that both begin alike
  there.initialize(seed);
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->copy_from(there.parameter(i), stream());
  stream_.synchronize();  // before the host's copy goes
}

template <class T>
void PerceptronGpu<T>::set_gradients(std::vector<std::span<T>> gradients) {
  gradients_ = std::move(gradients);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (gradients_.at(i).size() != parameters_[i]->size())
      throw std::logic_error("PerceptronGpu: a gradient of another size");
}

template <class T>
Score PerceptronGpu<T>::forward(const data::Batch<T>& batch, const Dropout& dropout) {
  batch_ = batch.size();
  if (batch_ * sizes_[0] != batch.inputs.size() || batch_ > samples_.size())
    throw std::logic_error("PerceptronGpu: a batch that does not fit");
  if (batch_ == 0) return {};
  units_[0]->copy_from(batch.inputs, stream());
  labels_.copy_from(batch.labels, stream());
  samples_.copy_from(batch.samples, stream());
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  kept_scale_ = static_cast<T>(1 / (1 - std::ldexp(threshold, -32)));
  for (std::size_t l = 1; l < sizes_.size(); ++l) {
    multiply<T>(blas_, false, true, batch_, sizes_[l], sizes_[l - 1], units_[l - 1]->data(),
                parameters_[2 * l - 2]->data(), units_[l]->data());
    finish_layer<<<blocks_for(batch_ * sizes_[l]), threads, 0, stream()>>>(
        units_[l]->data(), parameters_[2 * l - 1]->data(), batch_, sizes_[l],
        l + 1 < sizes_.size() ? samples_.data() : nullptr, static_cast<std::uint32_t>(l), threshold, kept_scale_,
        dropout.step, dropout.seed);
  }
  softmax_cross_entropy<<<blocks_for(batch_), threads, 0, stream()>>>(units_.back()->data(), labels_.data(), batch_,
                                                                      sizes_.back(), errors_.back()->data(),
                                                                      losses_.data(), rights_.data());
  multinode::check(cudaGetLastError());
  std::vector<T> losses(losses_.size());
  std::vector<std::uint8_t> rights(rights_.size());
  losses_.copy_to(losses, stream());
  rights_.copy_to(rights, stream());
  stream_.synchronize();
  Score score;
  for (std::size_t s = 0; s < batch_; ++s) {
    score.loss += static_cast<double>(losses[s]);
    score.right += rights[s];
  }
  return score;
}

template <class T>
void PerceptronGpu<T>::backward(const std::function<void(std::size_t)>& ready, bool add) {
  if (add) throw std::logic_error("PerceptronGpu: it does not accumulate");
  for (std::size_t l = sizes_.size() - 1; l >= 1; --l) {
    const std::size_t n = sizes_[l], inputs = sizes_[l - 1];
    T* const errors = errors_[l]->data();
    const std::span<T> bias_gradient = gradients_.at(2 * l - 1), weight_gradient = gradients_[2 * l - 2];
    column_sums<<<blocks_for(n), threads, 0, stream()>>>(errors, batch_, n, bias_gradient.data());
    ready(2 * l - 1);
    if (batch_ > 0)
      multiply<T>(blas_, true, false, n, inputs, batch_, errors, units_[l - 1]->data(), weight_gradient.data());
    else
      multinode::check(cudaMemsetAsync(weight_gradient.data(), 0, weight_gradient.size_bytes(), stream()));
    ready(2 * l - 2);
    if (l == 1 || batch_ == 0) continue;
    T* const below = errors_[l - 1]->data();
    multiply<T>(blas_, false, false, batch_, inputs, n, errors, parameters_[2 * l - 2]->data(), below);
    through_relu<<<blocks_for(batch_ * inputs), threads, 0, stream()>>>(below, units_[l - 1]->data(), batch_ * inputs,
                                                                        kept_scale_);
  }
  multinode::check(cudaGetLastError());
}

template <class T>
void PerceptronGpu<T>::update(SgdGpu<T>& optimizer, double learning_rate) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    optimizer.update(i, parameter(i), gradients_.at(i), learning_rate, stream());
  multinode::check(cudaGetLastError());
}

template class SgdGpu<float>;
template class SgdGpu<double>;
template class PerceptronGpu<float>;
template class PerceptronGpu<double>;

}  // namespace model
