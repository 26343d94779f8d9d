// SPDX-License-Identifier: Apache-2.0
#include "architecture.hpp"

#include "../ddp/philox.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace model {

std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min(std::ldexp(probability, 32), std::ldexp(1.0, 32) - 1));
}

template <class T>
std::vector<ddp::NamedBlock> parameters_of(const Architecture& architecture) {
  const std::vector<std::size_t>& sizes = architecture.sizes;
  if (sizes.size() < 2 || std::ranges::find(sizes, 0u) != sizes.end())
    throw std::logic_error("Perceptron: it takes two layers of units at least");
  constexpr multinode::DataType type = multinode::data_type_of<T>();
  std::vector<ddp::NamedBlock> named;
  for (std::size_t l = 1; l < sizes.size(); ++l) {
    const std::string layer = "layer " + std::to_string(l);
    named.push_back({layer + " weights", {sizes[l], sizes[l - 1]}, {nullptr, sizes[l] * sizes[l - 1], type}});
    named.push_back({layer + " biases", {sizes[l]}, {nullptr, sizes[l], type}});
  }
  return named;
}

template <class T>
std::vector<T> initial_values(const Architecture& architecture, std::size_t i, std::uint64_t seed) {
  const std::size_t inputs = architecture.sizes.at(i / 2), units = architecture.sizes.at(i / 2 + 1);
  const double range = 1 / std::sqrt(static_cast<double>(inputs));
  std::vector<T> values(i % 2 == 0 ? units * inputs : units);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const ddp::PhiloxWords random =
        ddp::philox({static_cast<std::uint32_t>(j), ddp::stream_initial + static_cast<std::uint32_t>(i), 0, 0}, seed);
    values[j] = static_cast<T>(range * (std::ldexp(random[0] + 0.5, -31) - 1));
  }
  return values;
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

#define MODEL_FOR(T)                                                                          \
  template std::vector<ddp::NamedBlock> parameters_of<T>(const Architecture&);                \
  template std::vector<T> initial_values<T>(const Architecture&, std::size_t, std::uint64_t); \
  template void require_fit<T>(const Architecture&, std::size_t, const data::Batch<T>&, const Dropout&);
MODEL_FOR(float)
MODEL_FOR(double)
#undef MODEL_FOR

}  // namespace model
