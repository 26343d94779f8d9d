// on_device.hpp: one training for the CPU and for GPUs: all in which model::Perceptron and model::PerceptronGpu differ.
// A program writes its training as a template of the model, and with_perceptron() calls it with the right one.
#pragma once

#include "ddp/checkpoint.hpp"
#include "train_step.hpp"
#ifdef DDP_ON_GPU
#include "model/perceptron_gpu.hpp"
#endif

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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

// Makes the reducer of the model's gradients; call connect() next. Collective, called by all ranks. On a GPU it puts
// the communicator's later calls on the model's stream, and limits the model's waiting by the World's deadline.
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

// All ranks start from rank 0's parameters. Collective, called by all ranks.
template <class Model, class T>
void start_training(multinode::World& world, multinode::Communicator& communicator, Model& model,
                    const ddp::Reducer<T>& reducer, std::uint64_t seed) {
  connect(model, reducer);
  model.initialize(seed);
  ddp::broadcast_parameters(world, communicator, model.parameters());
  model.parameters_changed();
}

#ifdef DDP_ON_GPU
// train_step() for a model on a GPU, which the host does not wait for: it loads the next batch meanwhile. What came of
// a step is looked at later, with take_loss(). `hooks` have nothing to see. `graphs`: records the step, and repeats it,
// as one CUDA graph for every size of the global batch; or null.
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

// The sum of the losses of this rank's samples since the last call. Collective, called by all ranks. On a GPU, where
// train_step() did not wait for the loss, it throws std::runtime_error, on all ranks, if one was not finite; it names
// the step, and the rank where it was one alone: a step later every rank's parameters are as bad.
template <class Model>
double take_loss([[maybe_unused]] multinode::World& world, multinode::Communicator& communicator, Model& model) {
  const model::Totals totals = model.take_totals();
  if constexpr (!on_gpu<Model>) return totals.loss;
  double bad = totals.bad_step > 0;
  sum_over_ranks(communicator, model, {&bad, 1});
  if (bad == 0) return totals.loss;
  const std::vector<std::string> steps =
      world.gather("first step without a loss", totals.bad_step > 0 ? std::to_string(totals.bad_step) : "");
  std::size_t first = 0, ranks = 0, rank = 0;
  for (std::size_t r = 0; r < steps.size(); ++r) {
    if (steps[r].empty()) continue;
    const std::size_t step = std::stoul(steps[r]);
    if (ranks == 0 || step < first) {
      first = step;
      ranks = 0;
      rank = r;
    }
    ranks += step == first;
  }
  throw std::runtime_error("the loss of " + (ranks == 1 ? "rank " + std::to_string(rank) : "several ranks") +
                           " is not finite in step " + std::to_string(first) + "; a smaller --learning-rate may help");
}

// hashes_of_ranks() of the model's parameters. Collective, called by all ranks.
template <class Model>
std::vector<std::string> parameter_hashes(multinode::World& world, Model& model) {
  std::vector<typename Model::value_type> parameters = model.copy_parameters();
  const ddp::NamedBlock block{"parameters", {parameters.size()}, std::span(parameters)};
  return ddp::hashes_of_ranks(world, {&block, 1});
}

// What checkpoints of a training hold: blocks of the model and of its optimizer, wherever they are.
template <class Model>
class CheckpointBlocks {
 public:
  CheckpointBlocks(Model& model, std::vector<ddp::NamedBlock> blocks) : model_(model), blocks_(std::move(blocks)) {}

  // The same blocks in the host's memory, as they are now. They are there until the next call.
  const std::vector<ddp::NamedBlock>& fetch() {
#ifdef DDP_ON_GPU
    if constexpr (on_gpu<Model>) {
      here().fetch();
      model_.wait();
      return here().here();
    }
#endif
    return blocks_;
  }

  // ddp::load_checkpoint().
  ddp::Restored load(multinode::World& world, multinode::Communicator& communicator,
                     const std::vector<std::filesystem::path>& newest_first, const nlohmann::json& options) {
#ifdef DDP_ON_GPU
    if constexpr (on_gpu<Model>) {
      if (world.rank() == 0 && !newest_first.empty()) here();
      return ddp::load_checkpoint(world, communicator, newest_first,
                                  copies_ ? copies_->here() : std::vector<ddp::NamedBlock>(), options, [&] {
                                    if (copies_) copies_->send();
                                    ddp::broadcast_parameters(world, communicator, blocks_);
                                    model_.parameters_changed();
                                    model_.wait();
                                  });
    }
#endif
    return ddp::load_checkpoint(world, communicator, newest_first, blocks_, options);
  }

 private:
  Model& model_;
  std::vector<ddp::NamedBlock> blocks_;
#ifdef DDP_ON_GPU
  model::HostCopies& here() {
    if (!copies_) copies_.emplace(blocks_, model_.stream());
    return *copies_;
  }
  std::optional<model::HostCopies> copies_;
#endif
};
