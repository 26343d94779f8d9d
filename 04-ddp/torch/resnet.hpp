// resnet.hpp: the residual networks of He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR
// 2016, table 1, with the stride of a bottleneck in its 3 x 3 convolution; parameters' names and initial distributions
// are torchvision's.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace model {

inline constexpr std::string_view resnet_names = "resnet18, resnet34, resnet50, resnet101 or resnet152";

struct ResNetLayout {
  bool bottleneck = false;           // blocks of three convolutions, else of two
  std::vector<std::int64_t> blocks;  // in each of the four stages
};
ResNetLayout resnet_layout(std::string_view name);  // throws multinode::UsageError for another name

class ResNetImpl : public torch::nn::Module {
 public:
  ResNetImpl(const ResNetLayout& layout, std::int64_t classes);

  // images: batch x 3 x height x width; returns batch x classes
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Sequential stage(std::int64_t blocks, std::int64_t width, std::int64_t stride);

  bool bottleneck_;
  std::int64_t channels_ = 64;  // while it is built: of what the next block gets
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet);

}  // namespace model
