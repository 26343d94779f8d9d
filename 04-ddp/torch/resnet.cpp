#include "resnet.hpp"

#include <multinode/check.hpp>

namespace model {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// What both kinds of block end with: the block's input, brought to the output's shape where that is another, is added.
class BlockImpl : public torch::nn::Module {
 protected:
  void add_shortcut(std::int64_t in, std::int64_t out, std::int64_t stride) {
    if (stride != 1 || in != out)
      register_module("downsample", downsample_ = torch::nn::Sequential(convolution(in, out, 1, stride),
                                                                        torch::nn::BatchNorm2d(out)));
  }
  torch::Tensor joined(torch::Tensor residual, const torch::Tensor& input) {
    return residual.add_(downsample_ ? downsample_->forward(input) : input).relu_();
  }

 private:
  torch::nn::Sequential downsample_ = nullptr;
};

struct BasicBlockImpl : BlockImpl {
  BasicBlockImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1(register_module("conv1", convolution(in, width, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(width))) {
    add_shortcut(in, width, stride);
  }
  torch::Tensor forward(const torch::Tensor& x) { return joined(bn2(conv2(bn1(conv1(x)).relu_())), x); }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
};
TORCH_MODULE(BasicBlock);

struct BottleneckImpl : BlockImpl {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1(register_module("conv1", convolution(in, width, 1, 1))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, stride))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(width))),
        conv3(register_module("conv3", convolution(width, 4 * width, 1, 1))),
        bn3(register_module("bn3", torch::nn::BatchNorm2d(4 * width))) {
    add_shortcut(in, 4 * width, stride);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return joined(bn3(conv3(bn2(conv2(bn1(conv1(x)).relu_())).relu_())), x);
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Conv2d conv3;
  torch::nn::BatchNorm2d bn3;
};
TORCH_MODULE(Bottleneck);

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
    if (bottleneck_)
      sequence->push_back(Bottleneck(channels_, width, stride));
    else
      sequence->push_back(BasicBlock(channels_, width, stride));
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
