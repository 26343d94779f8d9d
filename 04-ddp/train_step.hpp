// train_step.hpp: data-parallel training of one model: what is done at the start, in each step, and at the end.
#pragma once

#include "data/batch.hpp"
#include "ddp/reducer.hpp"
#include "ddp/trace.hpp"
#include "model/perceptron.hpp"

#include <multinode/communicator.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Whether the model is on a GPU: see on_device.hpp.
template <class Model>
constexpr bool on_gpu = requires(Model& model) {
  model.stream();
};

// Has the model keep its gradients, and its parameters if the ranks share them, where the reducer wants them.
template <class Model, class T>
void connect(Model& model, const ddp::Reducer<T>& reducer) {
  std::vector<std::span<T>> gradients, parameters;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    gradients.push_back(reducer.gradient(i));
    if (!reducer.own().empty()) parameters.push_back(reducer.parameter(i));
  }
  model.set_gradients(std::move(gradients));
  if constexpr (!on_gpu<Model>)
    if (!parameters.empty()) model.set_parameters(std::move(parameters));
}

// What else is to be done in a step.
struct StepHooks {
  std::function<void(std::size_t)> complete;  // with a gradient's number, when it is computed and before it is sent
  ddp::StepObserver observe;                  // when the step has ended
};

// `batch` is this rank's part; `divisor` is what the sum of all ranks' gradients is divided by: the number of samples
// in the whole batch. Throws std::runtime_error if the loss of this rank's part is not finite.
template <class Model, class Optimizer, class T>
model::Score train_step(Model& model, Optimizer& optimizer, ddp::Reducer<T>& reducer, const data::Batch<T>& batch,
                        std::size_t divisor, const model::Dropout& dropout, double learning_rate,
                        const StepHooks& hooks = {}) {
  ddp::StepTimes times;
  const auto now = [&times](std::size_t i) { times.at[i] = std::chrono::steady_clock::now(); };
  now(0);
  const model::Score score = model.forward(batch, dropout);
  // Before the reduction: behind it every rank's parameters are as bad, and nobody can tell whose loss was.
  if (!std::isfinite(score.loss))
    throw std::runtime_error("the loss is " + std::to_string(score.loss) + " in step " +
                             std::to_string(dropout.step + 1) + "; a smaller --learning-rate may help");
  now(1);
  reducer.begin(divisor);
  model.backward(
      [&](std::size_t parameter) {
        if (hooks.complete) hooks.complete(parameter);
        reducer.mark_ready(parameter);
      },
      reducer.adds());
  now(2);
  reducer.wait();
  now(3);
  model.update(optimizer, learning_rate, reducer.own());
  if (!reducer.own().empty()) reducer.gather_parameters();
  now(4);
  if (hooks.observe) hooks.observe(times);
  return score;
}

// Sums a few numbers over all ranks.
template <class Model>
void sum_over_ranks(multinode::Communicator& communicator, [[maybe_unused]] Model& model, std::span<double> numbers) {
  if constexpr (on_gpu<Model>)  // NCCL takes device memory only
    model.sum(communicator, numbers);
  else
    communicator.all_reduce(numbers);
}
