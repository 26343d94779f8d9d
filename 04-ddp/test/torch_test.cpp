#include "torch/device.hpp"
#include "torch/resnet.hpp"

#include <multinode/base/check.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace torch_test {

std::int64_t elements(const std::vector<torch::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const torch::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

TEST(ResNet, HasTorchvisionsParametersAndTurnsImagesIntoClasses) {
  const struct {
    const char* name;
    std::int64_t parameters;
    std::size_t tensors;
  } nets[] = {{"resnet18", 11'689'512, 62},
              {"resnet34", 21'797'672, 110},
              {"resnet50", 25'557'032, 161},
              {"resnet101", 44'549'160, 314},
              {"resnet152", 60'192'808, 467}};
  for (const auto& net : nets) {
    model::ResNet resnet(model::resnet_layout(net.name), 1000);
    EXPECT_EQ(elements(resnet->parameters()), net.parameters) << net.name;
    EXPECT_EQ(resnet->parameters().size(), net.tensors) << net.name;
    EXPECT_TRUE(resnet->named_parameters().contains("layer4.1.conv2.weight")) << net.name;
    EXPECT_TRUE(resnet->named_parameters().contains("layer2.0.downsample.0.weight")) << net.name;
    EXPECT_TRUE(resnet->named_buffers().contains("bn1.running_var")) << net.name;
    if (net.name == std::string("resnet101") || net.name == std::string("resnet152")) continue;  // of 50's blocks
    resnet->eval();
    for (const std::int64_t width : {32, 48})
      EXPECT_EQ(resnet->forward(torch::randn({2, 3, 32, width})).sizes(), (std::vector<std::int64_t>{2, 1000}));
  }
  EXPECT_THROW(model::resnet_layout("resnet19"), multinode::UsageError);
}

// On a GPU it is TensorSgd that moves the parameters. Its operations round as often as Sgd's, in another order at most.
TEST(TensorSgd, MovesParametersAsSgdDoes) {
  torch::manual_seed(2);
  std::vector<float> one(1000), other(1000);
  const torch::Tensor start = torch::randn({1000});
  for (std::vector<float>* to : {&one, &other}) std::copy_n(start.data_ptr<float>(), to->size(), to->begin());
  const std::vector<ddp::NamedBlock> parameters{{"weights", {10, 100}, std::span(one)}};
  const auto sgd = make_sgd(parameters, torch::kCPU, 0.9, 0.01);
  TensorSgd tensor_sgd(parameters, torch::kCPU, 0.9, 0.01);
  for (int step = 0; step < 10; ++step) {
    const torch::Tensor gradient = torch::randn({1000});
    const std::span<const float> there(gradient.data_ptr<float>(), 1000);
    sgd->update(0, one, there, 0.1);
    tensor_sgd.update(0, other, there, 0.1);
  }
  const auto state = tensor_sgd.state(), wanted = sgd->state();
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state[0].name, wanted[0].name);
  EXPECT_EQ(state[0].shape, wanted[0].shape);
  const auto* velocity = static_cast<const float*>(state[0].block.data);
  const auto* wanted_velocity = static_cast<const float*>(wanted[0].block.data);
  for (std::size_t i = 0; i < one.size(); ++i) {  // numbers of about 10, each off by some 30 roundings of 2^-24
    EXPECT_NEAR(other[i], one[i], 2e-5);
    EXPECT_NEAR(velocity[i], wanted_velocity[i], 2e-5);
    EXPECT_GT(std::abs(one[i] - start[static_cast<std::int64_t>(i)].item<float>()), 0);
  }
}

}  // namespace torch_test
