#include "perceptron.hpp"

#include "../ddp/philox.hpp"
#include "blas.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace model {
namespace {

// Zeroes the units of one sample that dropout takes, and scales up the others.
template <class T>
void drop(std::span<T> units, std::uint32_t threshold, T scale, std::uint32_t layer, std::uint32_t sample,
          const Dropout& dropout) {
  for (std::size_t first = 0; first < units.size(); first += 4) {
    const ddp::PhiloxWords random = ddp::philox(
        {static_cast<std::uint32_t>(first / 4), ddp::stream_dropout + layer, sample, dropout.step}, dropout.seed);
    const std::size_t n = std::min<std::size_t>(4, units.size() - first);
    for (std::size_t j = 0; j < n; ++j) units[first + j] *= random[j] < threshold ? T(0) : scale;
  }
}

}  // namespace

std::vector<std::size_t> parameter_counts(std::span<const std::size_t> sizes) {
  std::vector<std::size_t> counts;
  for (std::size_t l = 1; l < sizes.size(); ++l) {
    counts.push_back(sizes[l] * sizes[l - 1]);
    counts.push_back(sizes[l]);
  }
  return counts;
}

std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min(std::ldexp(probability, 32), std::ldexp(1.0, 32) - 1));
}

template <class T>
Perceptron<T>::Perceptron(std::vector<std::size_t> sizes, std::size_t capacity)
    : sizes_(std::move(sizes)), counts_(parameter_counts(sizes_)) {
  use_one_blas_thread();
  for (const std::size_t count : counts_) {
    parameters_.emplace_back(count);
    velocity_.emplace_back(count);
  }
  gradient_storage_.resize(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0}));
  for (const std::size_t size : sizes_) {
    units_.emplace_back(capacity * size);
    errors_.emplace_back(capacity * size);
  }
}

template <class T>
std::vector<T> Perceptron<T>::copy_parameters() const {
  std::vector<T> all;
  for (const std::vector<T>& parameter : parameters_) all.insert(all.end(), parameter.begin(), parameter.end());
  return all;
}

template <class T>
void Perceptron<T>::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const double range = 1 / std::sqrt(static_cast<double>(sizes_[i / 2]));
    for (std::size_t j = 0; j < counts_[i]; ++j) {
      const ddp::PhiloxWords random =
          ddp::philox({static_cast<std::uint32_t>(j), ddp::stream_initial + static_cast<std::uint32_t>(i), 0, 0}, seed);
      parameters_[i][j] = static_cast<T>(range * (std::ldexp(random[0] + 0.5, -31) - 1));
    }
    std::fill(velocity_[i].begin(), velocity_[i].end(), T(0));
  }
}

template <class T>
void Perceptron<T>::set_gradients(std::vector<std::span<T>> gradients) {
  gradients_ = std::move(gradients);
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (gradients_.at(i).size() != counts_[i]) throw std::logic_error("Perceptron: a gradient of another size");
}

template <class T>
Score Perceptron<T>::forward(const data::Batch& batch, const Dropout& dropout) {
  batch_ = batch.size();
  if (batch_ * sizes_[0] != batch.pixels.size() || batch.pixels.size() > units_[0].size())
    throw std::logic_error("Perceptron: a batch that does not fit");
  std::transform(batch.pixels.begin(), batch.pixels.end(), units_[0].begin(),
                 [](std::uint8_t pixel) { return static_cast<T>(pixel) / T(127.5) - T(1); });

  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  kept_scale_ = static_cast<T>(1 / (1 - std::ldexp(threshold, -32)));
  for (std::size_t l = 1; l < sizes_.size(); ++l) {
    const std::size_t n = sizes_[l];
    T* const sums = units_[l].data();
    const std::vector<T>& bias = parameters_[2 * l - 1];
    for (std::size_t s = 0; s < batch_; ++s) std::copy(bias.begin(), bias.end(), sums + s * n);
    multiply(Transpose::second, batch_, n, sizes_[l - 1], units_[l - 1].data(), parameters_[2 * l - 2].data(), T(1),
             sums);
    if (l == layers()) break;
    for (std::size_t i = 0; i < batch_ * n; ++i) sums[i] = std::max(sums[i], T(0));
    if (threshold > 0)
      for (std::size_t s = 0; s < batch_; ++s)
        drop(std::span<T>(sums + s * n, n), threshold, kept_scale_, static_cast<std::uint32_t>(l), batch.samples[s],
             dropout);
  }

  Score score;
  const std::size_t n = sizes_.back();
  for (std::size_t s = 0; s < batch_; ++s) {
    const std::span<const T> out(units_.back().data() + s * n, n);
    T* const error = errors_.back().data() + s * n;
    const T largest = *std::max_element(out.begin(), out.end());
    T sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += error[j] = std::exp(out[j] - largest);
    const std::size_t label = batch.labels[s];
    score.loss += static_cast<double>(std::log(sum) + largest - out[label]);
    score.right += out[label] == largest;
    for (std::size_t j = 0; j < n; ++j) error[j] /= sum;
    error[label] -= 1;
  }
  return score;
}

template <class T>
void Perceptron<T>::backward(const std::function<void(std::size_t)>& ready) {
  for (std::size_t l = layers(); l >= 1; --l) {
    const std::size_t n = sizes_[l], inputs = sizes_[l - 1];
    const T* const errors = errors_[l].data();
    const std::span<T> bias_gradient = gradients_.at(2 * l - 1), weight_gradient = gradients_[2 * l - 2];
    std::fill(bias_gradient.begin(), bias_gradient.end(), T(0));
    for (std::size_t s = 0; s < batch_; ++s)
      for (std::size_t j = 0; j < n; ++j) bias_gradient[j] += errors[s * n + j];
    ready(2 * l - 1);
    multiply(Transpose::first, n, inputs, batch_, errors, units_[l - 1].data(), T(0), weight_gradient.data());
    ready(2 * l - 2);  // its reduction goes on under the product below
    if (l == 1) break;
    T* const below = errors_[l - 1].data();
    multiply(Transpose::none, batch_, inputs, n, errors, parameters_[2 * l - 2].data(), T(0), below);
    // Units that are 0 were cut by ReLU or dropout: nothing passes back through them. The others were scaled.
    const T* const units = units_[l - 1].data();
    for (std::size_t i = 0; i < batch_ * inputs; ++i) below[i] = units[i] > 0 ? below[i] * kept_scale_ : T(0);
  }
}

template <class T>
void Perceptron<T>::update(double learning_rate, double momentum) {
  const T rate = static_cast<T>(learning_rate), keep = static_cast<T>(momentum);
  // The velocity of a weight whose gradient stays 0 (a dead ReLU) shrinks into the subnormal numbers, which some CPUs
  // compute a hundred times more slowly. No parameter notices one this small.
  const T negligible = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    T* const parameter = parameters_[i].data();
    T* const velocity = velocity_[i].data();
    const T* const gradient = gradients_.at(i).data();
    for (std::size_t j = 0; j < counts_[i]; ++j) {
      const T sum = keep * velocity[j] + gradient[j];
      velocity[j] = std::abs(sum) < negligible ? T(0) : sum;
      parameter[j] -= rate * velocity[j];
    }
  }
}

template class Perceptron<float>;
template class Perceptron<double>;

}  // namespace model
