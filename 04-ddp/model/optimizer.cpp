#include "optimizer.hpp"

#include "arithmetic.hpp"

#include <cmath>
#include <stdexcept>

namespace model {
namespace {

template <class T>
std::vector<std::vector<T>> zeros_like(const std::vector<ddp::NamedBlock>& parameters) {
  std::vector<std::vector<T>> zeros;
  for (const ddp::NamedBlock& parameter : parameters) zeros.emplace_back(parameter.block.count);
  return zeros;
}

template <class T>
void add_state(std::vector<ddp::NamedBlock>& state, const std::vector<ddp::NamedBlock>& parameters, const char* what,
               std::vector<std::vector<T>>& values) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    state.push_back({std::string(what) + " of " + parameters[i].name, parameters[i].shape, std::span(values[i])});
}

}  // namespace

template <class T>
Sgd<T>::Sgd(std::vector<ddp::NamedBlock> parameters, double momentum, double weight_decay)
    : parameters_(std::move(parameters)),
      momentum_(static_cast<T>(momentum)),
      weight_decay_(static_cast<T>(weight_decay)),
      velocity_(zeros_like<T>(parameters_)) {}

template <class T>
void Sgd<T>::update(std::size_t i, std::size_t first, std::span<T> parameter, std::span<const T> gradient,
                    double learning_rate) {
  const T rate = static_cast<T>(learning_rate), momentum = momentum_, weight_decay = weight_decay_;
  T* const velocity = velocity_.at(i).data() + first;
  if (momentum == 0) {  // half the memory to go through
    for (std::size_t j = 0; j < parameter.size(); ++j)
      parameter[j] -= rate * (gradient[j] + weight_decay * parameter[j]);
    return;
  }
  for (std::size_t j = 0; j < parameter.size(); ++j) {
    velocity[j] = or_zero(momentum * velocity[j] + gradient[j] + weight_decay * parameter[j]);
    parameter[j] -= rate * velocity[j];
  }
}

template <class T>
std::vector<ddp::NamedBlock> Sgd<T>::state() {
  std::vector<ddp::NamedBlock> state;
  add_state(state, parameters_, "velocity", velocity_);
  return state;
}

template <class T>
Adam<T>::Adam(std::vector<ddp::NamedBlock> parameters)
    : parameters_(std::move(parameters)), mean_(zeros_like<T>(parameters_)), square_(zeros_like<T>(parameters_)) {}

template <class T>
void Adam<T>::update(std::size_t i, std::size_t first, std::span<T> parameter, std::span<const T> gradient,
                     double learning_rate) {
  if (steps_[0] == 0) throw std::logic_error("Adam: update() before begin_step()");
  const AdamFactors<T> factors = adam_factors<T>(steps_[0], learning_rate);
  T* const mean = mean_.at(i).data() + first;
  T* const square = square_.at(i).data() + first;
  for (std::size_t j = 0; j < parameter.size(); ++j)
    parameter[j] -= adam_change(mean[j], square[j], gradient[j], factors);
}

template <class T>
std::vector<ddp::NamedBlock> Adam<T>::state() {
  std::vector<ddp::NamedBlock> state{{"steps", {1}, std::span<double>(steps_)}};
  add_state(state, parameters_, "mean", mean_);
  add_state(state, parameters_, "mean of squares", square_);
  return state;
}

template class Sgd<float>;
template class Sgd<double>;
template class Adam<float>;
template class Adam<double>;

}  // namespace model
