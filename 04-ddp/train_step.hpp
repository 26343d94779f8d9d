// train_step.hpp: the step of data-parallel training, and what goes with it at the start and the end of a run.
#pragma once

#include "data/fashion_mnist.hpp"
#include "ddp/reducer.hpp"
#include "model/perceptron.hpp"

#include <multinode/communicator.hpp>

#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Where the reducer wants each gradient of the model.
template <class Model>
std::vector<std::span<typename Model::value_type>> gradients_of(const ddp::Reducer<typename Model::value_type>& reducer,
                                                                const Model& model) {
  std::vector<std::span<typename Model::value_type>> gradients;
  for (std::size_t i = 0; i < model.parameters(); ++i) gradients.push_back(reducer.gradient(i));
  return gradients;
}

// Rank 0's parameters to all ranks.
template <class Model>
void broadcast_parameters(multinode::Communicator& communicator, Model& model) {
  for (std::size_t i = 0; i < model.parameters(); ++i) communicator.broadcast(model.parameter(i), 0);
}

// `batch` is this rank's part; `divisor` what the sum of all ranks' gradients is divided by: the samples of the whole
// batch. Throws std::runtime_error if the loss of this rank's part is not a number.
template <class Model>
model::Score train_step(Model& model, ddp::Reducer<typename Model::value_type>& reducer, const data::Batch& batch,
                        std::size_t divisor, const model::Dropout& dropout, double learning_rate, double momentum) {
  const model::Score score = model.forward(batch, dropout);
  // Before the reduction: behind it the loss of every rank is as bad, and nobody can tell whose was first.
  if (!std::isfinite(score.loss))
    throw std::runtime_error("the loss is " + std::to_string(score.loss) + " in step " +
                             std::to_string(dropout.step + 1) + ": try a smaller --learning-rate");
  model.backward([&](std::size_t parameter) { reducer.mark_ready(parameter); });
  reducer.wait(divisor);
  model.update(learning_rate, momentum);
  return score;
}
