// architecture.hpp: what a perceptron consists of, and what is asked of a step; the same for every device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/batch.hpp"
#include "../ddp/parameters.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace model {

// Of a sample with outputs z and targets t, or label c.
enum class Loss {
  cross_entropy,         // -log softmax(z)[c]
  binary_cross_entropy,  // sum of -t log s - (1 - t) log(1 - s), s = 1 / (1 + exp(-z))
  mean_square,           // mean of (z - t)^2
};

// Layers of sizes[0] - sizes[1] - ... - sizes.back() units, each linear; hidden ones then have ReLU, unless told not
// to, and dropout. Parameters, in order: weights of layer 1 (units x inputs, row by row), its biases, weights of layer
// 2 ...
struct Architecture {
  std::vector<std::size_t> sizes;
  Loss loss = Loss::cross_entropy;
  bool hidden_relu = true;
  bool output_relu = false;
};

// Of the forward pass. A unit is dropped or not by (seed, step, number of the sample in the data set, layer, unit)
// alone, so the masks do not depend on how a batch is shared out.
struct Dropout {
  double probability = 0;  // 0: none, as when the model is evaluated; below 1
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
};

// Of all forward passes since it was 0.
struct Totals {
  double loss = 0;  // sum over the samples
  // Samples whose first largest output is the label's, or, with binary_cross_entropy, whose outputs are all on the
  // target's side of 0; not counted with mean_square.
  std::uint64_t right = 0;
  std::uint32_t bad_step = 0;  // number, from 1, of the first step whose loss was not finite; 0: none
};

// "Keep the unit whose 32 random bits are not below this": exact to 2^-32, and the scale of the kept ones follows it.
std::uint32_t dropout_threshold(double probability);

// Names and shapes of the parameters, without memory. Throws std::logic_error for sizes that make no network.
template <class T>  // float, double
std::vector<ddp::NamedBlock> parameters_of(const Architecture& architecture);

// Parameter number i at the start: uniform in +-1/sqrt(inputs), weights and biases; the same for the same seed.
template <class T>
std::vector<T> initial_values(const Architecture& architecture, std::size_t i, std::uint64_t seed);

// Throws std::logic_error for a batch that does not fit, and for dropout behind hidden layers without ReLU.
template <class T>
void require_fit(const Architecture& architecture, std::size_t capacity, const data::Batch<T>& batch,
                 const Dropout& dropout);

}  // namespace model
