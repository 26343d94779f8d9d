// distributed_data_parallel.hpp: what libtorch has for Python only: data-parallel gradients of any torch::nn::Module.
#pragma once

#include "../ddp/reducer.hpp"
#include "device.hpp"

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace ddp {

// The module's parameters or buffers, under the names that named_parameters() gives them. The memory is the tensors'
// own. Throws std::runtime_error, naming it, for a tensor that is not dense, or of a type that communicators do not
// have.
std::vector<NamedBlock> parameters_of(const torch::nn::Module& module);
std::vector<NamedBlock> buffers_of(const torch::nn::Module& module);

// Averages the gradients of a module over all ranks, while autograd computes the rest of them.
//
//   every step, on every rank:   begin(divisor), or accumulate() where the step has more passes to come
//                                loss = ... module->forward(...) ...; loss.backward()
//                                wait()
//
// After the wait() that follows begin(), each parameter's grad() is the sum of all ranks' gradients over the divisor:
// world.size() if each rank's loss is the mean of equally many samples, the size of the global batch if it is a sum.
// A backward pass that leaves a parameter out is an error that names it.
//
// Collective requirement: all ranks make the same calls, but for the forward and backward passes themselves.
class DistributedDataParallel {
 public:
  // Gives all ranks rank 0's parameters and buffers. The module's parameters that require a gradient are the reducer's,
  // in the order of module.parameters(); they and the module outlive this object, and keep their memory. Throws
  // std::runtime_error, naming the parameter, if ranks have other parameters than rank 0, or if one that requires a
  // gradient is not of float, or not in the memory that the communicator takes: a GPU's for nccl.
  DistributedDataParallel(multinode::World& world, multinode::Communicator& communicator, torch::nn::Module& module,
                          const ReducerOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // As Reducer's. begin() and accumulate() do what zero_grad() is for.
  void begin(std::size_t divisor);
  void accumulate();
  void wait();

  // One step of one pass, in which all ranks have batches of the same size: `mean_loss` returns the mean of this
  // rank's.
  torch::Tensor train(const std::function<torch::Tensor()>& mean_loss, Optimizer& optimizer, double learning_rate);

  // Moves the parameters by their gradients. `optimizer` was made of parameters().
  void update(Optimizer& optimizer, double learning_rate);

  // Gives all ranks rank 0's buffers (BatchNorm's running statistics); call it before an evaluation or a checkpoint.
  void broadcast_buffers();

  // Those that require a gradient.
  const std::vector<NamedBlock>& parameters() const { return blocks_; }

  const Reducer<float>& reducer() const { return *reducer_; }

 private:
  using Node = decltype(torch::autograd::impl::grad_accumulator(std::declval<torch::Tensor>()));
  struct Hook {
    Node accumulator;  // a parameter does not own it
    std::uintptr_t key;
  };

  void gradient_is_there(std::size_t parameter);
  void forget_gradients();

  multinode::World& world_;
  multinode::Communicator& communicator_;
  torch::nn::Module& module_;
  std::vector<torch::Tensor> parameters_;
  std::vector<NamedBlock> blocks_;  // of parameters_
  torch::Tensor storage_;
  std::unique_ptr<Reducer<float>> reducer_;
  std::vector<torch::Tensor> gradients_;  // in storage_, shaped as the parameters
  std::vector<Hook> hooks_;
};

}  // namespace ddp
