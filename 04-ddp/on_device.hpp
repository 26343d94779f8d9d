// on_device.hpp: data-parallel training of one model, on CPUs and on GPUs: what a program does at the start, in each
// step and at the end, and everything in which model::Perceptron and model::PerceptronGpu differ. A program writes its
// training as a template of the model, and with_perceptron() calls it with the right one.
#pragma once

#include "data/batch.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/reducer.hpp"
#include "ddp/trace.hpp"
#include "model/perceptron.hpp"
#ifdef DDP_ON_GPU
#include "model/perceptron_gpu.hpp"
#endif

#include <multinode/communicator.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Whether the model is on a GPU.
template <class Model>
constexpr bool on_gpu = requires(Model& model) {
  model.stream();
};

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

// What the ranks of one host keep in shared memory, if they can share any. `update`: the gradients and the parameters,
// of which each rank updates one part; use it with train_step().
enum class Share { nothing, gradients, update };

// Makes the reducer of the model's gradients; call use_reducer_storage() next. Collective, called by all ranks. On a
// GPU it puts the communicator's later calls on the model's stream, and limits the model's waiting by the World's
// deadline.
template <class Model, class T = typename Model::value_type>
ddp::Reducer<T> make_reducer([[maybe_unused]] multinode::World& world, multinode::Communicator& communicator,
                             Model& model, const ddp::ReducerOptions& options = {},
                             [[maybe_unused]] Share share = Share::gradients) {
#ifdef DDP_ON_GPU
  if constexpr (on_gpu<Model>) {
    communicator.set_stream(model.stream());
    model.set_wait([&world](cudaEvent_t event) {
      const auto inside = world.watchdog().enter("wait for the GPU");
      multinode::check(cudaEventSynchronize(event));
    });
    return {communicator, model.parameters(), model.gradient_storage(), options,
            [&model](std::span<T> elements, T factor) { model.scale(elements, factor); }};
  }
#endif
  if constexpr (!on_gpu<Model>) {
    if (communicator.size() == 1 || share == Share::nothing)
      return {communicator, model.parameters(), model.gradient_storage(), options};
    const std::size_t count = ddp::elements_of(model.parameters());
    const std::size_t sharded = ddp::Reducer<T>::sharded_size(count, communicator.size());
    const std::span<T> gradients = communicator.allocate<T>(sharded);
    if (share == Share::gradients || !communicator.shared(gradients))
      return {communicator, model.parameters(), gradients.first(count), options};
    return {communicator, model.parameters(), gradients, communicator.allocate<T>(sharded), options};
  }
}

// Where each rank updates its part of the parameters, the rest of its optimizer's state is out of date. Gives every
// rank all of it, bit for bit. Collective, called by all ranks.
template <class T>
void gather_state(multinode::Communicator& communicator, model::Optimizer<T>& optimizer,
                  const ddp::Reducer<T>& reducer) {
  for (std::size_t i = 0; i < reducer.own().size(); ++i)
    for (const std::span<T> state : optimizer.state_of(i)) {
      const auto [begin, end] = reducer.own()[i];
      std::ranges::fill(state.first(begin), T(0));
      std::ranges::fill(state.subspan(end), T(0));
      using Bits = std::conditional_t<sizeof(T) == sizeof(std::int32_t), std::int32_t, std::int64_t>;
      communicator.all_reduce({state.data(), state.size(), multinode::data_type_of<Bits>()});
    }
}

// Has the model keep its gradients, and its parameters if the ranks share them, where the reducer wants them.
template <class Model, class T>
void use_reducer_storage(Model& model, const ddp::Reducer<T>& reducer) {
  std::vector<std::span<T>> gradients, parameters;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    gradients.push_back(reducer.gradient(i));
    if (!reducer.own().empty()) parameters.push_back(reducer.parameter(i));
  }
  model.set_gradients(std::move(gradients));
  if constexpr (!on_gpu<Model>)
    if (!parameters.empty()) model.set_parameters(std::move(parameters));
}

// All ranks start from rank 0's parameters. Collective, called by all ranks.
template <class Model, class T>
void start_training(multinode::World& world, multinode::Communicator& communicator, Model& model,
                    const ddp::Reducer<T>& reducer, std::uint64_t seed) {
  use_reducer_storage(model, reducer);
  model.initialize(seed);
  ddp::broadcast_parameters(world, communicator, model.parameters());
  model.parameters_changed();
}

// What else is to be done in a step.
struct StepHooks {
  std::function<void(std::size_t)> complete = {};  // with a gradient's number, before it is sent
  ddp::StepObserver observe = {};                  // when the step has ended
};

// `batch` is this rank's part; `divisor` is what the sum of all ranks' gradients is divided by: the number of samples
// in the whole batch. Throws std::runtime_error if the loss of this rank's part is not finite.
template <class Model, class Optimizer, class T>
void train_step(Model& model, Optimizer& optimizer, ddp::Reducer<T>& reducer, const data::Batch<T>& batch,
                std::size_t divisor, const model::Dropout& dropout, double learning_rate, const StepHooks& hooks = {}) {
  ddp::StepTimes times;
  const auto now = [&times](std::size_t i) { times.at[i] = std::chrono::steady_clock::now(); };
  now(0);
  const double loss = model.forward(batch, dropout).loss;
  // Checked before the reduction: after it all ranks have NaN in their parameters, and the rank that caused it is
  // unknown.
  if (!std::isfinite(loss))
    throw std::runtime_error("the loss is " + std::to_string(loss) + " in step " + std::to_string(dropout.step + 1) +
                             "; a smaller --learning-rate may help");
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
}

#ifdef DDP_ON_GPU
// train_step() for a model on a GPU. The host does not wait for the GPU, and loads the next batch meanwhile;
// take_loss() checks the loss later. Calls no hooks. `graphs`: records the step, and repeats it, as one CUDA graph for
// every size of the global batch; or null.
template <class T, class U, class Optimizer>
void train_step(model::PerceptronGpu<T, U>& model, Optimizer& optimizer, ddp::Reducer<T>& reducer,
                const data::Batch<T>& batch, std::size_t divisor, const model::Dropout& dropout, double learning_rate,
                const StepHooks& = {}, model::StepGraphs* graphs = nullptr, std::size_t global_batch = 0) {
  model.load(batch, dropout, learning_rate);
  const auto step = [&] {
    model.forward();
    reducer.begin(divisor);
    model.backward([&](std::size_t parameter) { reducer.mark_ready(parameter); }, reducer.adds());
    reducer.wait();
    model.update(optimizer);
  };
  if (graphs)
    graphs->run(global_batch, model.stream(), step);
  else
    step();
}
#endif

// Sums a few numbers over all ranks.
template <class Model>
void sum_over_ranks(multinode::Communicator& communicator, [[maybe_unused]] Model& model, std::span<double> numbers) {
  if constexpr (on_gpu<Model>)  // NCCL takes device memory only
    model.sum(communicator, numbers);
  else
    communicator.all_reduce(numbers);
}

// The sum of the losses of this rank's samples since the last call. Collective, called by all ranks. On a GPU, where
// train_step() did not wait for the loss, it throws std::runtime_error, on all ranks, if one was not finite; it names
// the step, and the rank if it was only one: a step later all ranks have NaN in their parameters.
template <class Model>
double take_loss([[maybe_unused]] multinode::World& world, multinode::Communicator& communicator, Model& model) {
  const model::Totals totals = model.take_totals();
  if constexpr (!on_gpu<Model>) return totals.loss;
  double bad = totals.bad_step > 0;
  sum_over_ranks(communicator, model, {&bad, 1});
  if (bad == 0) return totals.loss;
  std::vector<unsigned long> steps;
  for (const std::string& step : world.gather("first step without a loss", std::to_string(totals.bad_step)))
    steps.push_back(step == "0" ? std::numeric_limits<unsigned long>::max() : std::stoul(step));
  const auto first = std::ranges::min_element(steps);
  const bool one = std::ranges::count(steps, *first) == 1;
  throw std::runtime_error("the loss of " + (one ? "rank " + std::to_string(first - steps.begin()) : "several ranks") +
                           " is not finite in step " + std::to_string(*first) + "; a smaller --learning-rate may help");
}

// hashes_of_ranks() of the model's parameters. Collective, called by all ranks.
template <class Model>
std::vector<std::string> parameter_hashes(multinode::World& world, Model& model) {
  std::vector<typename Model::value_type> parameters = model.copy_parameters();
  const ddp::NamedBlock block{"parameters", {parameters.size()}, std::span(parameters)};
  return ddp::hashes_of_ranks(world, {&block, 1});
}

// What checkpoints of a training hold: blocks of the model and of its optimizer, on the host or on a GPU.
template <class Model>
class CheckpointBlocks {
 public:
  CheckpointBlocks(Model& model, std::vector<ddp::NamedBlock> blocks) : model_(model), blocks_(std::move(blocks)) {
#ifdef DDP_ON_GPU
    if constexpr (on_gpu<Model>) copies_.emplace(blocks_, model.stream());
#endif
  }

  // The same blocks in the host's memory, as they are now. They stay until the next call.
  const std::vector<ddp::NamedBlock>& fetch() {
#ifdef DDP_ON_GPU
    if constexpr (on_gpu<Model>) {
      copies_->fetch();
      model_.wait();
      return copies_->here();
    }
#endif
    return blocks_;
  }

  // ddp::load_checkpoint().
  ddp::Restored load(multinode::World& world, multinode::Communicator& communicator,
                     const std::vector<std::filesystem::path>& newest_first, const nlohmann::json& options) {
#ifdef DDP_ON_GPU
    if constexpr (on_gpu<Model>)
      return ddp::load_checkpoint(world, communicator, newest_first, copies_->here(), options, [&] {
        copies_->send();
        ddp::broadcast_parameters(world, communicator, blocks_);
        model_.parameters_changed();
        model_.wait();
      });
#endif
    return ddp::load_checkpoint(world, communicator, newest_first, blocks_, options);
  }

 private:
  Model& model_;
  std::vector<ddp::NamedBlock> blocks_;
#ifdef DDP_ON_GPU
  std::optional<model::HostCopies> copies_;  // for a model on a GPU
#endif
};
