// arithmetic.hpp: what a perceptron does with single numbers and rows of them, the same on the CPU and on a GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "architecture.hpp"

#include <cmath>
#include <cstddef>
#include <limits>

#ifdef __CUDACC__
#define MODEL_BOTH __host__ __device__
#else
#define MODEL_BOTH
#endif

namespace model {

// A part of an optimizer's state, or 0 where no parameter would notice it. The state of a weight whose gradient stays 0
// (a dead ReLU) shrinks into the subnormal numbers, which some CPUs compute a hundred times more slowly. A NaN stays
// one.
template <class T>
MODEL_BOTH T or_zero(T value) {
  constexpr T negligible = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  return std::abs(value) < negligible ? T(0) : value;
}

// What all elements need in a step of Adam, the one after `steps` - 1 others; see optimizer.hpp.
template <class T>
struct AdamFactors {
  T rate, scale;
};
template <class T>
MODEL_BOTH AdamFactors<T> adam_factors(double steps, double learning_rate) {
  const double mean_scale = 1 / (1 - std::pow(0.9, steps)), square_scale = 1 / (1 - std::pow(0.999, steps));
  return {static_cast<T>(learning_rate * mean_scale), static_cast<T>(std::sqrt(square_scale))};
}
// Returns what is to be subtracted from the parameter.
template <class T>
MODEL_BOTH T adam_change(T& mean, T& square, T gradient, AdamFactors<T> factors) {
  constexpr T b1 = T(0.9), b2 = T(0.999), a1 = T(1 - 0.9), a2 = T(1 - 0.999);  // 1 - b2 would be off by 5e-5
  mean = or_zero(b1 * mean + a1 * gradient);
  square = or_zero(b2 * square + a2 * gradient * gradient);
  return factors.rate * mean / (std::sqrt(square) * factors.scale + T(1e-8));
}

// The lanes that share the work on one row: elements first(), first() + count() ... are this lane's. sum(), largest()
// and all() take what each lane has, and give every lane the same. Here it is one thread, on the CPU; see Warp in
// cuda.cu.
struct OneLane {
  MODEL_BOTH static constexpr std::size_t first() { return 0; }
  MODEL_BOTH static constexpr std::size_t count() { return 1; }
  template <class T>
  MODEL_BOTH static T sum(T value) {
    return value;
  }
  template <class T>
  MODEL_BOTH static T largest(T value) {
    return value;
  }
  MODEL_BOTH static bool all(bool value) { return value; }
};

template <class T>
struct SampleScore {
  T loss;
  bool right;
};

// The loss of one sample with outputs z (n of them, after the output's ReLU, if there is one), and its derivatives by
// the sums in front of that ReLU. `target` (n) or `label`, as the loss has it. A label is right if it is the first of
// the largest outputs; NaN is the largest, as for PyTorch's argmax.
template <class T, class Lanes>
MODEL_BOTH SampleScore<T> score_sample(Loss kind, bool output_relu, std::size_t n, const T* z, const T* target,
                                       std::size_t label, T* error, Lanes lanes) {
  const auto set_error = [&](std::size_t j, T value) { error[j] = output_relu && !(z[j] > 0) ? T(0) : value; };
  T loss = 0;
  bool right = true;
  switch (kind) {
    case Loss::cross_entropy: {
      T largest = -std::numeric_limits<T>::infinity(), labelled = 0, sum = 0;
      for (std::size_t j = lanes.first(); j < n; j += lanes.count()) {
        largest = z[j] > largest ? z[j] : largest;
        if (j == label) labelled = z[j];
      }
      largest = lanes.largest(largest);
      labelled = lanes.sum(labelled);
      for (std::size_t j = lanes.first(); j < n; j += lanes.count()) {
        const bool beats =
            std::isnan(z[j]) ? !std::isnan(labelled) || j < label : z[j] > labelled || (z[j] == labelled && j < label);
        right = right && !beats;
      }
      for (std::size_t j = lanes.first(); j < n; j += lanes.count()) sum += std::exp(z[j] - largest);
      sum = lanes.sum(sum);
      for (std::size_t j = lanes.first(); j < n; j += lanes.count())
        set_error(j, std::exp(z[j] - largest) / sum - T(j == label));
      return {std::log(sum) + largest - labelled, lanes.all(right)};
    }
    case Loss::binary_cross_entropy:
      for (std::size_t j = lanes.first(); j < n; j += lanes.count()) {
        const T small = std::exp(-std::abs(z[j]));  // never overflows
        loss += std::log1p(small) + (z[j] < 0 ? T(0) : z[j]) - target[j] * z[j];
        right = right && (z[j] > 0) == (target[j] > T(0.5));
        set_error(j, (z[j] < 0 ? small : T(1)) / (1 + small) - target[j]);
      }
      break;
    case Loss::mean_square:
      for (std::size_t j = lanes.first(); j < n; j += lanes.count()) {
        const T difference = z[j] - target[j];
        loss += difference * difference / static_cast<T>(n);
        set_error(j, 2 * difference / static_cast<T>(n));
      }
      right = false;
      break;
  }
  return {lanes.sum(loss), lanes.all(right)};
}

}  // namespace model
