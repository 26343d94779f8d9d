// distributed_optimizer.hpp: data parallelism in Horovod's style: an optimizer that averages gradients over the ranks
// before it uses them.
#pragma once

#include "../model/optimizer.hpp"
#include "reducer.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace ddp {

// Wraps an optimizer and owns the model's Reducer. A training that has one changes in three places: all ranks begin
// with rank 0's parameters and optimizer state (broadcast()), the backward pass marks gradients in reducer() as they
// become ready, between reducer().begin() and the update, and the update is made by this.
template <class T>  // float, double
class DistributedOptimizer : public model::Optimizer<T> {
 public:
  // What it is given must outlive it: `optimizer` of `parameters`, and `storage`, the memory of their gradients. All
  // ranks, with the same parameters and options.
  DistributedOptimizer(multinode::World& world, multinode::Communicator& communicator, model::Optimizer<T>& optimizer,
                       std::span<const NamedBlock> parameters, std::span<T> storage, const ReducerOptions& options = {})
      : world_(world),
        communicator_(communicator),
        optimizer_(optimizer),
        parameters_(parameters.begin(), parameters.end()),
        reducer_(world, communicator, parameters, storage, options) {}

  Reducer<T>& reducer() { return reducer_; }

  // Gives every rank rank 0's parameters and optimizer state. Collective; throws as broadcast_parameters does.
  void broadcast() {
    broadcast_parameters(world_, communicator_, parameters_);
    broadcast_parameters(world_, communicator_, optimizer_.state());
  }

  // Collective: waits until the gradients are averages over all ranks.
  void begin_step() override {
    reducer_.wait();
    optimizer_.begin_step();
  }
  void update(std::size_t i, std::span<T> parameter, std::span<const T> gradient, double learning_rate) override {
    optimizer_.update(i, parameter, gradient, learning_rate);
  }
  std::vector<NamedBlock> state() override { return optimizer_.state(); }

 private:
  multinode::World& world_;
  multinode::Communicator& communicator_;
  model::Optimizer<T>& optimizer_;
  std::vector<NamedBlock> parameters_;
  Reducer<T> reducer_;
};

}  // namespace ddp
