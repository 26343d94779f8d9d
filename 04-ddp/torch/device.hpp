// device.hpp: where a rank computes with libtorch, the CPU or its GPU, and what differs there.
#pragma once

#include "../ddp/parameters.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <torch/torch.h>

#include <memory>
#include <span>
#include <vector>

// With nccl the GPU that the communicator uses; throws HardwareAbsent if this libtorch cannot use it. Else the CPU,
// whose cores the node's ranks share, because more threads of tensor operations than cores compete for them. A rank
// that has fewer threads already, by OMP_NUM_THREADS or because the launcher binds it to a core, keeps them.
torch::Device choose_device(const multinode::World& world, const multinode::Communicator& communicator);

// Stochastic gradient descent, see model::Descend.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Moves parameter number i by its gradient.
  virtual void update(std::size_t i, std::span<float> parameter, std::span<const float> gradient,
                      double learning_rate) = 0;
  virtual std::vector<ddp::NamedBlock> state() = 0;  // what a checkpoint must hold beside the parameters
};

// By tensor operations: four passes over the memory in place of one, but on any device.
class TensorSgd : public Optimizer {
 public:
  TensorSgd(std::vector<ddp::NamedBlock> parameters, torch::Device device, double momentum = 0,
            double weight_decay = 0);
  void update(std::size_t i, std::span<float> parameter, std::span<const float> gradient,
              double learning_rate) override;
  std::vector<ddp::NamedBlock> state() override;

 private:
  std::vector<ddp::NamedBlock> parameters_;
  torch::Device device_;
  double momentum_, weight_decay_;
  std::vector<torch::Tensor> velocity_;
};

// By model::Sgd on the CPU, by TensorSgd elsewhere.
std::unique_ptr<Optimizer> make_sgd(std::vector<ddp::NamedBlock> parameters, torch::Device device, double momentum = 0,
                                    double weight_decay = 0);

// Sums a number over all ranks. Collective, called by all ranks.
double sum_over_ranks(multinode::Communicator& communicator, torch::Device device, double number);

// Blocks on `device`, and the host's memory for them: the same memory on the CPU, copies of a GPU's.
class HostBlocks {
 public:
  HostBlocks(const std::vector<ddp::NamedBlock>& there, torch::Device device);
  const std::vector<ddp::NamedBlock>& here() const { return here_; }
  void send() const;  // copies them back

 private:
  std::vector<ddp::NamedBlock> here_;
  std::vector<torch::Tensor> bytes_there_, bytes_here_;
};
