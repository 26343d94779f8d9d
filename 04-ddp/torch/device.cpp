#include "device.hpp"

#include "../model/perceptron.hpp"

#include <multinode/base/check.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/node/limits.hpp>

#include <algorithm>
#include <utility>

namespace {

torch::Tensor floats(const void* data, std::size_t count, torch::Device device) {
  return torch::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)},
                          torch::TensorOptions(torch::kFloat32).device(device));
}

class CpuSgd : public Optimizer {
 public:
  CpuSgd(const std::vector<ddp::NamedBlock>& parameters, double momentum, double weight_decay)
      : sgd_(parameters, momentum, weight_decay) {}
  void update(std::size_t i, std::span<float> parameter, std::span<const float> gradient,
              double learning_rate) override {
    update_parameter(cpu_, sgd_, i, parameter, gradient.data(), model::settings_of<float>({}, learning_rate));
  }
  std::vector<ddp::NamedBlock> state() override { return sgd_.state(); }

 private:
  model::Cpu cpu_;
  model::Sgd<float> sgd_;
};

}  // namespace

torch::Device choose_device(const multinode::World& world, const multinode::Communicator& communicator) {
  if (communicator.backend() != multinode::Backend::nccl) {
    torch::set_num_threads(std::clamp(multinode::usable_cpus() / world.local_size(), 1, torch::get_num_threads()));
    return torch::kCPU;
  }
#ifdef MULTINODE_HAVE_CUDA
  if (torch::cuda::is_available()) {
    int device = 0;
    multinode::check(cudaGetDevice(&device));
    return {torch::kCUDA, static_cast<torch::DeviceIndex>(device)};
  }
#endif
  throw multinode::HardwareAbsent("--backend nccl: this libtorch can use no GPU; pip's torch can, with a driver");
}

TensorSgd::TensorSgd(std::vector<ddp::NamedBlock> parameters, torch::Device device, double momentum,
                     double weight_decay)
    : parameters_(std::move(parameters)), device_(device), momentum_(momentum), weight_decay_(weight_decay) {
  for (const ddp::NamedBlock& parameter : parameters_)
    velocity_.push_back(torch::zeros({static_cast<std::int64_t>(parameter.block.count)}, device));
}

void TensorSgd::update(std::size_t i, std::span<float> parameter, std::span<const float> gradient,
                       double learning_rate) {
  const torch::NoGradGuard no_grad;
  torch::Tensor p = floats(parameter.data(), parameter.size(), device_);
  torch::Tensor& velocity = velocity_[i];
  velocity.mul_(momentum_).add_(floats(gradient.data(), gradient.size(), device_)).add_(p, weight_decay_);
  p.sub_(velocity, learning_rate);
}

std::vector<ddp::NamedBlock> TensorSgd::state() {
  std::vector<ddp::NamedBlock> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    state.push_back({"velocity of " + parameters_[i].name,
                     parameters_[i].shape,
                     {velocity_[i].data_ptr(), parameters_[i].block.count, multinode::DataType::float32}});
  return state;
}

std::unique_ptr<Optimizer> make_sgd(std::vector<ddp::NamedBlock> parameters, torch::Device device, double momentum,
                                    double weight_decay) {
  if (device.is_cpu()) return std::make_unique<CpuSgd>(parameters, momentum, weight_decay);
  return std::make_unique<TensorSgd>(std::move(parameters), device, momentum, weight_decay);
}

double sum_over_ranks(multinode::Communicator& communicator, torch::Device device, double number) {
  const torch::Tensor sum = torch::full({1}, number, torch::TensorOptions(torch::kFloat64).device(device));
  communicator.all_reduce({sum.data_ptr(), 1, multinode::DataType::float64});
  communicator.synchronize();  // within the deadline
  return sum.item<double>();
}

HostBlocks::HostBlocks(const std::vector<ddp::NamedBlock>& there, torch::Device device) : here_(there) {
  for (ddp::NamedBlock& block : here_) {
    bytes_there_.push_back(torch::from_blob(block.block.data, {static_cast<std::int64_t>(block.block.bytes())},
                                            torch::TensorOptions(torch::kUInt8).device(device)));
    bytes_here_.push_back(bytes_there_.back().cpu());
    block.block.data = bytes_here_.back().data_ptr();
  }
}

void HostBlocks::send() const {
  for (std::size_t i = 0; i < here_.size(); ++i) torch::Tensor(bytes_there_[i]).copy_(bytes_here_[i]);
}
