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

template <class Model, class Optimizer, class OptimizerOnCpu, class... Settings>
void expect_trains_as_the_perceptron(double close, Settings... settings) {
  const model::Architecture architecture{sizes, model::Loss::cross_entropy};
  Model model(architecture, 64);
  model::Perceptron<double> right(architecture, 64);
  Optimizer optimizer(model.parameters(), settings...);
  OptimizerOnCpu optimizer_on_cpu(right.parameters(), settings...);
  model.initialize(4);
  right.initialize(4);
  const std::vector<double> start = right.copy_parameters();
  std::uint32_t step = 0;
  for (const std::size_t count : {33, 7, 0, 64, 1, 20}) {
    const model::Dropout dropout{0.25, 7, step};
    const double rate = 0.01 / (1 + step);
    pass(model, count, step, dropout, false, rate);
    pass(right, count, step, dropout, false, rate);
    model.update(optimizer);
    right.update(optimizer_on_cpu);
    ++step;
  }
  EXPECT_LE(difference(model.copy_parameters(), right.copy_parameters()), close);
  EXPECT_GT(difference(start, right.copy_parameters()), 100 * close) << "it would let anything through";
  const std::vector<ddp::NamedBlock> state = optimizer.state(), same = optimizer_on_cpu.state();
  ASSERT_EQ(state.size(), same.size());
  for (std::size_t i = 0; i < state.size(); ++i) EXPECT_EQ(state[i].name, same[i].name);
}

TYPED_TEST(OnGpu, TrainsAsThePerceptronDoes) {
  expect_trains_as_the_perceptron<TypeParam, typename TypeParam::Sgd, model::Sgd<double>>(this->close, 0.9);
  // The first steps of Adam are as long for a gradient that is nearly 0 as for others, and go in the direction of its
  // rounding: only double shows that the rest is right.
  if constexpr (std::is_same_v<typename TypeParam::value_type, double>)
    expect_trains_as_the_perceptron<TypeParam, typename TypeParam::Adam, model::Adam<double>>(1e6 * this->close);
}

}  // namespace perceptron_gpu_test
