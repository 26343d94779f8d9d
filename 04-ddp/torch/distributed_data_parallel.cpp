#include "distributed_data_parallel.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <span>
#include <stdexcept>
#include <string>

namespace ddp {
namespace {

multinode::DataType data_type_of(const std::string& name, const torch::Tensor& tensor) {
  using Ours = multinode::DataType;
  static const std::map<torch::ScalarType, Ours> types = {
      {torch::kFloat32, Ours::float32},   {torch::kFloat64, Ours::float64}, {torch::kFloat16, Ours::float16},
      {torch::kBFloat16, Ours::bfloat16}, {torch::kInt8, Ours::int8},       {torch::kBool, Ours::uint8},
      {torch::kUInt8, Ours::uint8},       {torch::kInt32, Ours::int32},     {torch::kInt64, Ours::int64}};
  const auto type = types.find(tensor.scalar_type());
  if (type == types.end())
    throw std::runtime_error(name + " is of " + torch::toString(tensor.scalar_type()) + ", which cannot be sent");
  return type->second;
}

NamedBlock block_of(const std::string& name, const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided || !tensor.is_non_overlapping_and_dense())
    throw std::runtime_error(name + " is not a dense tensor");
  return {name,
          {tensor.sizes().begin(), tensor.sizes().end()},
          {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), data_type_of(name, tensor)}};
}

template <class Dictionary>
std::vector<NamedBlock> blocks_of(const Dictionary& tensors) {
  std::vector<NamedBlock> blocks;
  for (const auto& item : tensors) blocks.push_back(block_of(item.key(), item.value()));
  return blocks;
}

}  // namespace

std::vector<NamedBlock> parameters_of(const torch::nn::Module& module) { return blocks_of(module.named_parameters()); }
std::vector<NamedBlock> buffers_of(const torch::nn::Module& module) { return blocks_of(module.named_buffers()); }

DistributedDataParallel::DistributedDataParallel(multinode::World& world, multinode::Communicator& communicator,
                                                 torch::nn::Module& module, const ReducerOptions& options)
    : world_(world), communicator_(communicator), module_(module) {
  const bool on_gpu = communicator.backend() == multinode::Backend::nccl;
  std::size_t total = 0;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    blocks_.push_back(block_of(item.key(), item.value()));
    if (blocks_.back().block.type != multinode::DataType::float32)
      throw std::runtime_error("the gradient of " + item.key() + " is not of float");
    if (item.value().is_cuda() != on_gpu)
      throw std::runtime_error(item.key() + " is not where " + std::string(name_of(communicator.backend())) +
                               " reads: move the module to the communicator's device");
    parameters_.push_back(item.value());
    total += padded(blocks_.back().block.count, sizeof(float), device_alignment);
  }
  broadcast_parameters(world, communicator, parameters_of(module));
  broadcast_buffers();

  const torch::Device device = parameters_.at(0).device();
  const auto elements = static_cast<std::int64_t>(total);
  storage_ = torch::zeros({elements}, device);
  const auto scale = [device](std::span<float> elements, float factor) {
    torch::from_blob(elements.data(), {static_cast<std::int64_t>(elements.size())},
                     torch::TensorOptions(torch::kFloat32).device(device))
        .mul_(factor);
  };
  reducer_ = std::make_unique<Reducer<float>>(communicator, blocks_, std::span(storage_.data_ptr<float>(), total),
                                              options, on_gpu ? scale : ScaleOnDevice<float>());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    gradients_.push_back(storage_.as_strided(parameters_[i].sizes(), parameters_[i].strides(),  // flat memory
                                             reducer_->gradient(i).data() - storage_.data_ptr<float>()));
    Node accumulator = torch::autograd::impl::grad_accumulator(parameters_[i]);
    const std::uintptr_t key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          gradient_is_there(i);
          return outputs;
        }));
    hooks_.push_back({std::move(accumulator), key});
  }
}

DistributedDataParallel::~DistributedDataParallel() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  forget_gradients();
}

void DistributedDataParallel::begin(std::size_t divisor) {
  forget_gradients();
  reducer_->begin(divisor);
}

void DistributedDataParallel::accumulate() {
  forget_gradients();
  reducer_->accumulate();
}

void DistributedDataParallel::wait() {
  reducer_->wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients_[i];
}

torch::Tensor DistributedDataParallel::train(const std::function<torch::Tensor()>& mean_loss, Optimizer& optimizer,
                                             double learning_rate) {
  begin(static_cast<std::size_t>(world_.size()));
  const torch::Tensor loss = mean_loss();
  loss.backward();
  wait();
  update(optimizer, learning_rate);
  return loss;
}

void DistributedDataParallel::update(Optimizer& optimizer, double learning_rate) {
  if (!reducer_->reduced())
    throw std::logic_error("DistributedDataParallel::update() before the wait() of a pass after begin()");
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    optimizer.update(i, {static_cast<float*>(blocks_[i].block.data), blocks_[i].block.count}, reducer_->gradient(i),
                     learning_rate);
}

void DistributedDataParallel::broadcast_buffers() { broadcast_parameters(world_, communicator_, buffers_of(module_)); }

// Autograd hands over the tensor it computed, without a copy, to a parameter that has no gradient yet. So this is one
// pass over it, where a gradient that is there already takes two: one that zeroes it, and one that adds to it.
void DistributedDataParallel::gradient_is_there(std::size_t parameter) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = parameters_[parameter].mutable_grad();
  if (reducer_->adds())
    gradients_[parameter].add_(gradient);
  else
    gradients_[parameter].copy_(gradient);
  gradient = gradients_[parameter];
  reducer_->mark_ready(parameter);
}

void DistributedDataParallel::forget_gradients() {
  for (torch::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace ddp
