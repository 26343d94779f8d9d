// training_step.hpp: data-parallel training of one perceptron: what a program does at the start, in each step and at
// the end, on CPUs and on GPUs. A program writes its training as a template of the model, and with_perceptron() calls
// it with the right one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/batch.hpp"
#include "../ddp/checkpoint.hpp"
#include "../ddp/reducer.hpp"
#include "perceptron.hpp"
#ifdef DDP_ON_GPU
#include "cuda.hpp"
#endif

#include <multinode/base/check.hpp>
#include <multinode/communicator.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

template <class Model>
constexpr bool on_gpu = Model::Device::on_gpu;

// Returns train.operator()<Model>(), where Model computes where the communicator's memory is. Throws HardwareAbsent for
// nccl in a build without kernels.
template <class T, class Train>
int with_perceptron(const multinode::Communicator& communicator, Train&& train) {
  if (communicator.backend() != multinode::Backend::nccl) return train.template operator()<model::Perceptron<T>>();
#ifdef DDP_ON_GPU
  return train.template operator()<model::PerceptronGpu<T>>();
#else
  throw multinode::HardwareAbsent(
      "--backend nccl: this build has no kernels: install the CUDA Toolkit, and build again");
#endif
}

// Makes the reducer of the model's gradients. Collective, called by all ranks.
template <class Model, class T = typename Model::value_type>
ddp::Reducer<T> make_reducer(multinode::World& world, multinode::Communicator& communicator, Model& model,
                             const ddp::ReducerOptions& options = {}) {
  model.device().attach(world, communicator);
  if constexpr (on_gpu<Model>) {
    return {communicator, model.parameters(), model.gradient_storage(), options,
            [&model](std::span<T> elements, T factor) { scale(model.device(), elements, factor); }};
  } else {
    return {communicator, model.parameters(), model.gradient_storage(), options};
  }
}

// All ranks start from rank 0's parameters. Collective, called by all ranks.
template <class Model>
void start_training(multinode::World& world, multinode::Communicator& communicator, Model& model, std::uint64_t seed) {
  model.initialize(seed);
  ddp::broadcast_parameters(world, communicator, model.parameters());
}

// Called with a gradient's number, before it is sent.
using GradientHook = std::function<void(std::size_t)>;

// `batch` is this rank's part; `divisor` is what the sum of all ranks' gradients is divided by: the number of samples
// in the whole batch. On the CPU it throws std::runtime_error if the loss of this rank's part is not finite. With a GPU
// the host does not wait, and loads the next batch meanwhile; take_totals() checks the loss later.
template <class Model, class Optimizer, class T>
void train_step(Model& model, Optimizer& optimizer, ddp::Reducer<T>& reducer, const data::Batch<T>& batch,
                std::size_t divisor, const model::Dropout& dropout, double learning_rate,
                const GradientHook& complete = {}) {
  model.load(batch, dropout, learning_rate);
  model.forward();
  // Checked before the reduction: after it all ranks have NaN in their parameters, and the rank that caused it is
  // unknown.
  if constexpr (!on_gpu<Model>)
    if (model.totals().bad_step)
      throw std::runtime_error("the loss is " + std::to_string(model.totals().loss) + " in step " +
                               std::to_string(dropout.step + 1) + "; a smaller --learning-rate may help");
  reducer.begin(divisor);
  model.backward(
      [&](std::size_t parameter) {
        if (complete) complete(parameter);
        reducer.mark_ready(parameter);
      },
      reducer.adds());
  reducer.wait();
  model.update(optimizer);
}

// Sums a few numbers over all ranks.
template <class Model>
void sum_over_ranks(multinode::Communicator& communicator, Model& model, std::span<double> numbers) {
  model.device().sum(communicator, numbers);  // NCCL takes device memory only
}

// The totals of this rank's samples since the last call, in training or, `evaluated`, after the steps that the batches
// were loaded with. Collective, called by all ranks. Throws std::runtime_error, on all ranks, if a loss was not finite;
// it names the step, and the rank if it was only one: a step later all ranks have NaN in their parameters.
template <class Model>
model::Totals take_totals(multinode::World& world, multinode::Communicator& communicator, Model& model,
                          bool evaluated = false) {
  const model::Totals totals = model.take_totals();
  double bad = totals.bad_step > 0;
  sum_over_ranks(communicator, model, {&bad, 1});
  if (bad == 0) return totals;
  std::vector<unsigned long> steps;
  for (const std::string& step : world.gather("first step without a loss", std::to_string(totals.bad_step)))
    steps.push_back(step == "0" ? std::numeric_limits<unsigned long>::max() : std::stoul(step));
  const auto first = std::ranges::min_element(steps);
  const bool one = std::ranges::count(steps, *first) == 1;
  throw std::runtime_error(
      "the loss of " + (one ? "rank " + std::to_string(first - steps.begin()) : "several ranks") + " is not finite " +
      (evaluated ? "after step " + std::to_string(*first - 1) : "in step " + std::to_string(*first)) +
      "; a smaller --learning-rate may help");
}

// hashes_of_ranks() of the model's parameters. Collective, called by all ranks.
template <class Model>
std::vector<std::string> parameter_hashes(multinode::World& world, Model& model) {
  std::vector<typename Model::value_type> parameters = model.copy_parameters();
  const ddp::NamedBlock block{"parameters", {parameters.size()}, std::span(parameters)};
  return ddp::hashes_of_ranks(world, {&block, 1});
}

// What checkpoints of a training hold: blocks of the model and of its optimizer, and copies of them in the host's
// memory.
template <class Model>
class CheckpointBlocks {
 public:
  CheckpointBlocks(Model& model, std::vector<ddp::NamedBlock> blocks)
      : model_(model), blocks_(std::move(blocks)), copies_(blocks_), memory_(blocks_.size()) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      memory_[i].resize(blocks_[i].block.bytes());
      copies_[i].block.data = memory_[i].data();
    }
  }

  // The copies, of the blocks as they are now. They stay until the next call.
  const std::vector<ddp::NamedBlock>& fetch() {
    copy(blocks_, copies_);
    return copies_;
  }

  // ddp::load_checkpoint(), and its blocks on all ranks.
  ddp::Restored load(multinode::World& world, multinode::Communicator& communicator,
                     const std::vector<std::filesystem::path>& newest_first, const nlohmann::json& options) {
    ddp::Restored restored = ddp::load_checkpoint(world, newest_first, copies_, options);
    if (restored.state.is_null()) return restored;
    copy(copies_, blocks_);
    ddp::broadcast_parameters(world, communicator, blocks_);
    model_.device().wait();
    return restored;
  }

 private:
  void copy(const std::vector<ddp::NamedBlock>& from, const std::vector<ddp::NamedBlock>& to) {
    for (std::size_t i = 0; i < from.size(); ++i)
      model_.device().copy(std::span(static_cast<const std::byte*>(from[i].block.data), from[i].block.bytes()),
                           static_cast<std::byte*>(to[i].block.data));
    model_.device().wait();
  }

  Model& model_;
  std::vector<ddp::NamedBlock> blocks_, copies_;
  std::vector<std::vector<std::byte>> memory_;
};
