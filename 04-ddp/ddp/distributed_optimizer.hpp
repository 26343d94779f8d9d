// distributed_optimizer.hpp: data parallelism in Horovod's style: an optimizer that averages gradients over the ranks
// before it uses them.
#pragma once

#include "../on_device.hpp"

namespace ddp {

// Wraps a model's optimizer and owns the model's Reducer. A training that has one changes in three places: all ranks
// begin with rank 0's parameters and optimizer state (broadcast()), the backward pass marks gradients in reducer() as
// they become ready, between reducer().begin() and the update, and the update is made by this.
template <class Model, class Optimizer = typename Model::Sgd>
class DistributedOptimizer {
 public:
  // What it is given must outlive it. All ranks, with the same model and options.
  DistributedOptimizer(multinode::World& world, multinode::Communicator& communicator, Model& model,
                       Optimizer& optimizer, const ReducerOptions& options = {})
      : world_(world),
        communicator_(communicator),
        model_(model),
        optimizer_(optimizer),
        reducer_(communicator, model.parameters(), model.gradient_storage(), options,
                 gradient_memory(world, communicator, model)) {
    connect(model, reducer_);
  }

  Reducer<typename Model::value_type>& reducer() { return reducer_; }

  // Gives every rank rank 0's parameters and optimizer state. Collective; throws as broadcast_parameters does.
  void broadcast() {
    broadcast_parameters(world_, communicator_, model_.parameters());
    broadcast_parameters(world_, communicator_, optimizer_.state());
    model_.parameters_changed();
  }

  // Moves the parameters by the averages of all ranks' gradients. Collective.
  void update(double learning_rate) {
    reducer_.wait();
    if constexpr (on_gpu<Model>)
      model_.update(optimizer_);  // the rate that the model was loaded with
    else
      model_.update(optimizer_, learning_rate);
  }

 private:
  multinode::World& world_;
  multinode::Communicator& communicator_;
  Model& model_;
  Optimizer& optimizer_;
  Reducer<typename Model::value_type> reducer_;
};

}  // namespace ddp
