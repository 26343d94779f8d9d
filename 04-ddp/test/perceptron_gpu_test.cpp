// The perceptron on a GPU against Perceptron<double> on the CPU, which perceptron_test.cpp compares with the formulas.
// Skipped where there is no GPU.
#include "ddp/philox.hpp"
#include "model/cuda.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

namespace perceptron_gpu_test {

using model::PerceptronGpu;

const std::vector<std::size_t> sizes{12, 70, 9, 40};  // rows longer and shorter than a warp

template <class T>
data::Batch<T> some_batch(model::Loss loss, std::size_t count, std::uint32_t first) {
  data::Batch<T> batch;
  for (std::uint32_t s = first; s < first + count; ++s) {
    for (std::uint32_t j = 0; j < sizes[0]; ++j)
      batch.inputs.push_back(static_cast<T>(std::ldexp(ddp::philox({s, j, 0, 0}, 1)[0], -31) - 1));
    if (loss == model::Loss::cross_entropy)
      batch.labels.push_back(static_cast<std::uint8_t>(s % sizes.back()));
    else
      for (std::uint32_t j = 0; j < sizes.back(); ++j) batch.targets.push_back(static_cast<T>((s >> j % 5) % 2));
    batch.samples.push_back(s);
  }
  return batch;
}

template <class Model>
model::Totals pass(Model& model, std::size_t count, std::uint32_t first, const model::Dropout& dropout,
                   bool add = false, double rate = 0) {
  const auto batch = some_batch<typename Model::value_type>(model.architecture().loss, count, first);
  model.load(batch, dropout, rate);
  model.forward();
  model.backward([](std::size_t) {}, add);
  return model.take_totals();
}

// The largest difference, as a part of the largest of `wanted`.
template <class T>
double difference(const std::vector<T>& got, const std::vector<double>& wanted) {
  double largest = 0, most = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(got[i]) - wanted[i]));
    most = std::max(most, std::abs(wanted[i]));
  }
  return largest / most;
}

// Sums of some 100 products in each of 3 layers, and 6 steps: a few hundred roundings at most.
template <class Model>
class OnGpu : public ::testing::Test {
 public:
  using T = typename Model::value_type;
  void SetUp() override {
    if (multinode::device_count() == 0) GTEST_SKIP() << "no GPU can be used here";
  }
  static constexpr double close = 1000 * static_cast<double>(std::numeric_limits<T>::epsilon());
};
using Models = ::testing::Types<PerceptronGpu<double>, PerceptronGpu<float>>;
TYPED_TEST_SUITE(OnGpu, Models);

TYPED_TEST(OnGpu, LossesAndGradientsAreThePerceptrons) {
  for (const auto loss : {model::Loss::cross_entropy, model::Loss::binary_cross_entropy, model::Loss::mean_square})
    for (const int kind : {0, 1, 2, 3}) {
      const bool hidden_relu = kind & 1, output_relu = kind & 2;
      SCOPED_TRACE(testing::Message() << "loss " << static_cast<int>(loss) << ", ReLU behind hidden layers "
                                      << hidden_relu << ", outputs " << output_relu);
      const model::Architecture architecture{sizes, loss, hidden_relu, output_relu};
      const model::Dropout dropout{hidden_relu ? 0.25 : 0, 7, 3};
      TypeParam model(architecture, 64);
      model::Perceptron<double> right(architecture, 64);
      if (loss == model::Loss::cross_entropy) {  // all parameters are 0, so all outputs are the same: the first counts
        EXPECT_EQ(pass(model, 50, 31, {}).right, 2u) << "labels 31 ... 39, 0 ... 39, 0";
      }
      model.initialize(4);
      right.initialize(4);
      for (const std::uint32_t count : {33u, 7u}) {  // two passes, which add up
        const model::Totals got = pass(model, count, 100 - count, dropout, count == 7),
                            wanted = pass(right, count, 100 - count, dropout, count == 7);
        EXPECT_NEAR(got.loss, wanted.loss, this->close * (count + wanted.loss));
        EXPECT_EQ(got.right, wanted.right);
        EXPECT_EQ(got.bad_step, 0u);
      }
      EXPECT_LE(difference(model.copy_gradients(), right.copy_gradients()), this->close);
    }
}

}  // namespace perceptron_gpu_test
