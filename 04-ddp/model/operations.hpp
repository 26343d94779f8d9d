// operations.hpp: what a perceptron's step does with one element, or with one row of them; the matrix products are the
// Device's. See perceptron.hpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../ddp/philox.hpp"
#include "arithmetic.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace model {

// What changes from step to step.
template <class T>
struct StepSettings {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;  // of dropout
  T kept_scale = 1;
  double learning_rate = 0;
};
template <class T>
StepSettings<T> settings_of(const Dropout& dropout, double learning_rate) {
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  return {dropout.seed, dropout.step, threshold, static_cast<T>(1 / (1 - std::ldexp(threshold, -32))), learning_rate};
}

template <class T>
struct Scale {
  T* elements;
  T factor;
  MODEL_BOTH void operator()(std::size_t i) const { elements[i] *= factor; }
};

template <class T>
struct Fill {
  T* to;
  T value;
  MODEL_BOTH void operator()(std::size_t i) const { to[i] = value; }
};

// f(j) for j = 0 ... n - 1, where n <= most: unrolled on a GPU, where the indices of arrays in registers must be
// constants.
template <std::size_t most, class Function>
MODEL_BOTH void for_first(std::size_t n, Function f) {
#ifdef __CUDACC__
#pragma unroll
  for (std::size_t j = 0; j < most; ++j)
    if (j < n) f(j);
#else
#pragma GCC ivdep
  for (std::size_t j = 0; j < n; ++j) f(j);
#endif
}

// Hidden units from their sums (batch x size), in place: bias, ReLU, dropout. `width` units of a sample at a time: for
// i = 0 ... batch * pieces(size) - 1.
template <class T, std::size_t width>
struct FinishHidden {
  T* units;
  const T* bias;
  std::size_t size;
  bool relu;
  const std::uint32_t* samples;
  std::uint32_t layer;
  StepSettings<T> settings;
  MODEL_BOTH static constexpr std::size_t pieces(std::size_t size) { return (size + width - 1) / width; }
  MODEL_BOTH void operator()(std::size_t i) const {
    const std::size_t sample = i / pieces(size), first = i % pieces(size) * width;
    const std::uint32_t threshold = settings.threshold;
    const T scale = settings.kept_scale;
    constexpr std::size_t words = 4;  // of a Philox block
    std::uint32_t random[width];
    for (std::size_t block = 0; block < width / words && threshold > 0; ++block) {
      const ddp::PhiloxWords some = ddp::philox({static_cast<std::uint32_t>(first / words + block),
                                                 ddp::stream_dropout + layer, samples[sample], settings.step},
                                                settings.seed);
      for (std::size_t j = 0; j < words; ++j) random[block * words + j] = some[j];
    }
    T* const unit = units + sample * size + first;
    for_first<width>(size - first < width ? size - first : width, [&](std::size_t j) {
      T value = unit[j] + bias[first + j];
      if (relu) value = value < T(0) ? T(0) : value;  // a NaN stays one
      if (threshold > 0) value = random[j] < threshold ? T(0) : value * scale;
      unit[j] = value;
    });
  }
};

// Outputs from their sums (batch x size), in place: bias, ReLU; then the loss, and the errors.
template <class T>
struct FinishOutputs {
  Loss loss;
  bool relu;
  std::size_t size;
  T* sums;
  const T* bias;
  const T* targets;
  const std::uint8_t* labels;
  T* errors;
  T* losses;
  std::uint8_t* rights;
  template <class Lanes>
  MODEL_BOTH void operator()(std::size_t sample, Lanes lanes) const {
    T* const z = sums + sample * size;
    for (std::size_t j = lanes.first(); j < size; j += lanes.count()) {
      const T value = z[j] + bias[j];
      z[j] = relu && value < T(0) ? T(0) : value;
    }
    const bool by_label = loss == Loss::cross_entropy;
    const SampleScore<T> score = score_sample(loss, relu, size, z, by_label ? nullptr : targets + sample * size,
                                              by_label ? labels[sample] : 0u, errors + sample * size, lanes);
    if (lanes.first() != 0) return;
    losses[sample] = score.loss;
    rights[sample] = score.right;
  }
};

// One row: all samples' losses and rights into the totals.
template <class T>
struct AddUp {
  std::size_t batch;
  const T* losses;
  const std::uint8_t* rights;
  std::uint32_t step;
  Totals* totals;
  template <class Lanes>
  MODEL_BOTH void operator()(std::size_t, Lanes lanes) const {
    double loss = 0, right = 0;
    for (std::size_t s = lanes.first(); s < batch; s += lanes.count()) {
      loss += static_cast<double>(losses[s]);
      right += rights[s];
    }
    loss = lanes.sum(loss);
    right = lanes.sum(right);
    if (lanes.first() != 0) return;
    totals->loss += loss;
    totals->right += static_cast<std::uint64_t>(right);
    if (!(std::abs(loss) <= std::numeric_limits<double>::max()) && totals->bad_step == 0) totals->bad_step = step + 1;
  }
};

// Errors of hidden units' sums from those of the units, in place. What ReLU or dropout made 0 lets nothing through, and
// dropout scaled the rest.
template <class T>
struct ThroughHidden {
  const T* units;
  T* errors;
  T scale;
  MODEL_BOTH void operator()(std::size_t i) const {
    const T error = errors[i] * scale;  // always: the compiler makes vectors of a loop without branches
    errors[i] = units[i] > T(0) ? error : T(0);
  }
};

}  // namespace model
