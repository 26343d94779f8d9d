#include "resnet.hpp"

#include <multinode/base/check.hpp>

namespace model {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// Convolutions, each followed by a BatchNorm, then the sum with the block's input. If the output has another shape, a
// convolution of 1 x 1 brings the input to it.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t width, std::int64_t stride, bool bottleneck) {
    if (bottleneck) {
      add(in, width, 1, 1);
      add(width, width, 3, stride);
      add(width, 4 * width, 1, 1);
    } else {
      add(in, width, 3, stride);
      add(width, width, 3, 1);
    }
    const std::int64_t out = bottleneck ? 4 * width : width;
    if (stride != 1 || in != out)
      register_module("downsample",
                      downsample = torch::nn::Sequential(convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out)));
  }

  void add(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
    const std::string number = std::to_string(convolutions.size() + 1);
    convolutions.push_back(register_module("conv" + number, convolution(in, out, kernel, stride)));
    norms.push_back(register_module("bn" + number, torch::nn::BatchNorm2d(out)));
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = input;
    for (std::size_t i = 0; i < convolutions.size(); ++i) {
      if (i > 0) x.relu_();
      x = norms[i](convolutions[i](x));
    }
    return x.add_(downsample ? downsample->forward(input) : input).relu_();
  }

  std::vector<torch::nn::Conv2d> convolutions;
  std::vector<torch::nn::BatchNorm2d> norms;
  torch::nn::Sequential downsample = nullptr;
};
TORCH_MODULE(Block);

}  // namespace

ResNetLayout resnet_layout(std::string_view name) {
  if (name == "resnet18") return {false, {2, 2, 2, 2}};
  if (name == "resnet34") return {false, {3, 4, 6, 3}};
  if (name == "resnet50") return {true, {3, 4, 6, 3}};
  if (name == "resnet101") return {true, {3, 4, 23, 3}};
  if (name == "resnet152") return {true, {3, 8, 36, 3}};
  throw multinode::UsageError("the network must be " + std::string(resnet_names) + ", not '" + std::string(name) + "'");
}

ResNetImpl::ResNetImpl(const ResNetLayout& layout, std::int64_t classes)
    : bottleneck_(layout.bottleneck),
      conv1_(register_module(
          "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, channels_, 7).stride(2).padding(3).bias(false)))),
      bn1_(register_module("bn1", torch::nn::BatchNorm2d(channels_))),
      layer1_(register_module("layer1", stage(layout.blocks[0], 64, 1))),
      layer2_(register_module("layer2", stage(layout.blocks[1], 128, 2))),
      layer3_(register_module("layer3", stage(layout.blocks[2], 256, 2))),
      layer4_(register_module("layer4", stage(layout.blocks[3], 512, 2))),
      fc_(register_module("fc", torch::nn::Linear(channels_, classes))) {
  for (const auto& module : modules(false))
    if (const auto* convolution = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
}

torch::nn::Sequential ResNetImpl::stage(std::int64_t blocks, std::int64_t width, std::int64_t stride) {
  torch::nn::Sequential sequence;
  for (std::int64_t i = 0; i < blocks; ++i, stride = 1) {
    sequence->push_back(Block(channels_, width, stride, bottleneck_));
    channels_ = bottleneck_ ? 4 * width : width;
  }
  return sequence;
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = torch::max_pool2d(bn1_(conv1_(images)).relu_(), 3, 2, 1);
  x = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(x))));
  return fc_(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace model
