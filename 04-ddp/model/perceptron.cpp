#include "perceptron.hpp"

#include "../ddp/philox.hpp"
#include "arithmetic.hpp"
#include "blas.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace model {
namespace {

// Zeroes the units of one sample that dropout takes, and scales up the others. Random numbers are made for several
// units at once, in a loop that the compiler can vectorise: one by one they take longer than all other passes over the
// units.
template <class T>
void drop(std::span<T> units, std::uint32_t threshold, T scale, std::uint32_t layer, std::uint32_t sample,
          const Dropout& dropout) {
  constexpr std::size_t words = 4, together = 32 * words;
  std::array<std::uint32_t, together> random;
  for (std::size_t first = 0; first < units.size(); first += together) {
    const std::size_t n = std::min(together, units.size() - first);
    for (std::size_t j = 0; j < together / words; ++j) {
      const ddp::PhiloxWords four = ddp::philox(
          {static_cast<std::uint32_t>(first / words + j), ddp::stream_dropout + layer, sample, dropout.step},
          dropout.seed);
      for (std::size_t k = 0; k < words; ++k) random[j * words + k] = four[k];
    }
    T* const some = units.data() + first;
    for (std::size_t j = 0; j < n; ++j) some[j] *= random[j] < threshold ? T(0) : scale;
  }
}

}  // namespace

std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min(std::ldexp(probability, 32), std::ldexp(1.0, 32) - 1));
}

template <class T>
void require_fit(const Architecture& architecture, std::size_t capacity, const data::Batch<T>& batch,
                 const Dropout& dropout) {
  const std::size_t count = batch.size();
  if (count > capacity || batch.inputs.size() != count * architecture.sizes.front() ||
      (architecture.loss == Loss::cross_entropy ? batch.labels.size() != count
                                                : batch.targets.size() != count * architecture.sizes.back()))
    throw std::logic_error("Perceptron: a batch that does not fit");
  if (dropout_threshold(dropout.probability) > 0 && !architecture.hidden_relu)
    throw std::logic_error("Perceptron: dropout without ReLU");
}

template <class T>
Perceptron<T>::Perceptron(Architecture architecture, std::size_t capacity)
    : architecture_(std::move(architecture)), capacity_(capacity) {
  const std::vector<std::size_t>& sizes = architecture_.sizes;
  if (sizes.size() < 2 || std::find(sizes.begin(), sizes.end(), 0u) != sizes.end())
    throw std::logic_error("Perceptron: it takes two layers of units at least");
  use_one_blas_thread();
  units_.emplace_back();
  errors_.emplace_back();
  for (std::size_t l = 1; l < sizes.size(); ++l) {
    counts_.insert(counts_.end(), {sizes[l] * sizes[l - 1], sizes[l]});
    units_.emplace_back(capacity * sizes[l]);
    errors_.emplace_back(capacity * sizes[l]);
  }
  parameters_ = lay_out(parameter_storage_);
}

// Makes room for all parameters, and returns their parts of it, one behind the other.
template <class T>
std::vector<std::span<T>> Perceptron<T>::lay_out(std::vector<T>& storage) const {
  storage.resize(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0}));
  std::vector<std::span<T>> parts;
  for (std::span<T> left = storage; const std::size_t count : counts_) {
    parts.push_back(left.first(count));
    left = left.subspan(count);
  }
  return parts;
}

template <class T>
std::vector<ddp::NamedBlock> Perceptron<T>::parameters() {
  const std::vector<std::size_t>& sizes = architecture_.sizes;
  std::vector<ddp::NamedBlock> named;
  for (std::size_t l = 1; l < sizes.size(); ++l) {
    const std::string layer = "layer " + std::to_string(l);
    named.push_back({layer + " weights", {sizes[l], sizes[l - 1]}, parameters_[2 * l - 2]});
    named.push_back({layer + " biases", {sizes[l]}, parameters_[2 * l - 1]});
  }
  return named;
}

template <class T>
std::vector<T> Perceptron<T>::joined(const std::vector<std::span<T>>& parts) {
  std::vector<T> all;
  for (const std::span<T> part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

template <class T>
void Perceptron<T>::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const double range = 1 / std::sqrt(static_cast<double>(architecture_.sizes[i / 2]));
    for (std::size_t j = 0; j < parameters_[i].size(); ++j) {
      const ddp::PhiloxWords random =
          ddp::philox({static_cast<std::uint32_t>(j), ddp::stream_initial + static_cast<std::uint32_t>(i), 0, 0}, seed);
      parameters_[i][j] = static_cast<T>(range * (std::ldexp(random[0] + 0.5, -31) - 1));
    }
  }
}

template <class T>
std::span<T> Perceptron<T>::gradient_storage() {
  if (gradient_storage_.empty()) gradients_ = lay_out(gradient_storage_);
  return gradient_storage_;
}

template <class T>
void Perceptron<T>::set_gradients(std::vector<std::span<T>> gradients) {
  gradients_ = std::move(gradients);
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (gradients_.at(i).size() != counts_[i]) throw std::logic_error("Perceptron: a gradient of another size");
}

template <class T>
void Perceptron<T>::set_parameters(std::vector<std::span<T>> parameters) {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (parameters.at(i).size() != counts_[i]) throw std::logic_error("Perceptron: a parameter of another size");
    std::ranges::copy(parameters_[i], parameters[i].begin());
  }
  parameters_ = std::move(parameters);
  parameter_storage_ = {};
}

template <class T>
Score Perceptron<T>::forward(const data::Batch<T>& batch, const Dropout& dropout, double) {
  const std::vector<std::size_t>& sizes = architecture_.sizes;
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  require_fit(architecture_, capacity_, batch, dropout);
  batch_ = batch.size();
  inputs_ = batch.inputs.data();
  kept_scale_ = static_cast<T>(1 / (1 - std::ldexp(threshold, -32)));
  for (std::size_t l = 1; l < sizes.size(); ++l) {
    const std::size_t n = sizes[l];
    T* const sums = units(l);
    const T* const bias = parameters_[2 * l - 1].data();
    const bool relu = l < layers() ? architecture_.hidden_relu : architecture_.output_relu;
    multiply(Transpose::second, batch_, n, sizes[l - 1], l == 1 ? inputs_ : units(l - 1), parameters_[2 * l - 2].data(),
             T(0), sums);
    for (std::size_t s = 0; s < batch_; ++s) {
      T* const row = sums + s * n;
      for (std::size_t j = 0; j < n; ++j) row[j] += bias[j];
      if (relu)
        for (std::size_t j = 0; j < n; ++j) row[j] = row[j] < T(0) ? T(0) : row[j];  // a NaN stays one
      if (threshold > 0 && l < layers())
        drop(std::span<T>(row, n), threshold, kept_scale_, static_cast<std::uint32_t>(l), batch.samples[s], dropout);
    }
  }
  return score(batch);
}

// The loss, and its derivative by the outputs.
template <class T>
Score Perceptron<T>::score(const data::Batch<T>& batch) {
  Score score;
  const std::size_t n = architecture_.sizes.back();
  for (std::size_t s = 0; s < batch_; ++s) {
    const SampleScore<T> one = score_sample(
        architecture_.loss, architecture_.output_relu, n, units_.back().data() + s * n, batch.targets.data() + s * n,
        architecture_.loss == Loss::cross_entropy ? batch.labels[s] : 0, errors_.back().data() + s * n, OneLane());
    score.loss += static_cast<double>(one.loss);
    score.right += one.right;
  }
  totals_.loss += score.loss;
  totals_.right += score.right;
  return score;
}

template <class T>
void Perceptron<T>::backward(const std::function<void(std::size_t)>& ready, bool add) {
  const std::vector<std::size_t>& sizes = architecture_.sizes;
  for (std::size_t l = layers(); l >= 1; --l) {
    const std::size_t n = sizes[l], inputs = sizes[l - 1];
    const T* const errors = errors_[l].data();
    const std::span<T> bias_gradient = gradients_.at(2 * l - 1), weight_gradient = gradients_[2 * l - 2];
    if (!add) std::fill(bias_gradient.begin(), bias_gradient.end(), T(0));
    for (std::size_t s = 0; s < batch_; ++s)
      for (std::size_t j = 0; j < n; ++j) bias_gradient[j] += errors[s * n + j];
    ready(2 * l - 1);
    multiply(Transpose::first, n, inputs, batch_, errors, l == 1 ? inputs_ : units(l - 1), add ? T(1) : T(0),
             weight_gradient.data());
    ready(2 * l - 2);  // its reduction overlaps the product below
    if (l == 1) break;
    T* const below = errors_[l - 1].data();
    multiply(Transpose::none, batch_, inputs, n, errors, parameters_[2 * l - 2].data(), T(0), below);
    if (!architecture_.hidden_relu) continue;
    // Units that are 0 were cut by ReLU or dropout: nothing passes back through them. The others were scaled.
    const T* const kept = units(l - 1);
    const T scale = kept_scale_;
    for (std::size_t i = 0; i < batch_ * inputs; ++i) below[i] *= kept[i] > 0 ? scale : T(0);
  }
}

template <class T>
void Perceptron<T>::update(Optimizer<T>& optimizer, double learning_rate, std::span<const ddp::Range> parts) {
  optimizer.begin_step();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto [begin, end] = parts.empty() ? ddp::Range{0, parameters_[i].size()} : parts[i];
    optimizer.update(i, begin, parameters_[i].subspan(begin, end - begin), gradients_.at(i).subspan(begin, end - begin),
                     learning_rate);
  }
}

template void require_fit(const Architecture&, std::size_t, const data::Batch<float>&, const Dropout&);
template void require_fit(const Architecture&, std::size_t, const data::Batch<double>&, const Dropout&);
template class Perceptron<float>;
template class Perceptron<double>;

}  // namespace model
