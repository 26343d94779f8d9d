// The perceptron on a GPU, measured by Perceptron<double> on the CPU, and what only a GPU has. Skipped where there is
// none.
#include "ddp/philox.hpp"
#include "model/cuda.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace perceptron_gpu_test {

using model::PerceptronGpu;

const std::vector<std::size_t> sizes{12, 70, 9, 40};  // rows longer and shorter than a warp

template <class T>
data::Batch<T> some_batch(model::Loss loss, std::size_t count, std::uint32_t first = 0) {
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
void load(Model& model, model::Loss loss, std::size_t count, std::uint32_t first, const model::Dropout& dropout,
          double learning_rate = 0) {
  const auto batch = some_batch<typename Model::value_type>(loss, count, first);
  model.load(batch, dropout, learning_rate);
}

// The one to measure by. `off`: every weight and input is multiplied by 1 + off or 1 - off.
class Measure {
 public:
  Measure(const model::Architecture& architecture, double off)
      : perceptron(architecture, 64), sgd(perceptron.parameters(), 0.9), adam(perceptron.parameters()), off_(off) {
    perceptron.initialize(4);
    for (std::size_t i = 0; i < perceptron.parameters().size(); ++i) distort(perceptron.parameter(i), i);
  }
  model::Totals pass(data::Batch<double> batch, const model::Dropout& dropout, bool add = false, double rate = 0) {
    distort(batch.inputs, 100);
    perceptron.load(batch, dropout, rate);
    perceptron.forward();
    perceptron.backward([](std::size_t) {}, add);
    return perceptron.take_totals();
  }
  model::Perceptron<double> perceptron;
  model::Sgd<double> sgd;
  model::Adam<double> adam;

 private:
  void distort(std::span<double> values, std::size_t what) const {
    for (std::uint32_t j = 0; j < values.size(); ++j)
      values[j] *= 1 + (ddp::philox({j, static_cast<std::uint32_t>(what), 2, 2}, 5)[0] % 2 ? off_ : -off_);
  }
  double off_;
};

double largest_difference(std::span<const double> a, std::span<const double> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Tolerances are measured: how far results go when weights and inputs are off by 32 roundings of the type. Units and
// errors are rounded too, in each of 3 layers, and other directions may count for more: 10 times that.
template <class Model>
class OnGpu : public ::testing::Test {
 public:
  using T = typename Model::value_type;
  void SetUp() override {
    if (multinode::device_count() == 0) GTEST_SKIP() << "no GPU can be used here";
  }
  static constexpr double p = 32.0 * static_cast<double>(std::numeric_limits<T>::epsilon());
};
using Models = ::testing::Types<PerceptronGpu<double>, PerceptronGpu<float>>;
TYPED_TEST_SUITE(OnGpu, Models);

TYPED_TEST(OnGpu, LossesAndGradientsAreThePerceptrons) {
  using T = typename TypeParam::value_type;
  for (const auto loss : {model::Loss::cross_entropy, model::Loss::binary_cross_entropy, model::Loss::mean_square})
    for (const int kind : {0, 1, 2, 3}) {
      const bool hidden_relu = kind & 1, output_relu = kind & 2;
      SCOPED_TRACE(testing::Message() << "loss " << static_cast<int>(loss) << ", ReLU behind hidden layers "
                                      << hidden_relu << ", outputs " << output_relu);
      const model::Architecture architecture{sizes, loss, hidden_relu, output_relu};
      const model::Dropout dropout{hidden_relu ? 0.25 : 0, 7, 3};
      TypeParam model(architecture, 64);
      model.initialize(4);
      Measure right(architecture, 0), off(architecture, this->p);
      double loss_right = 0, loss_off = 0;
      std::size_t rights = 0, seen = 0;
      for (const std::size_t count : {33, 7}) {  // two passes, which add up
        const auto first = static_cast<std::uint32_t>(seen);
        load(model, loss, count, first, dropout);
        model.forward();
        model.backward([](std::size_t) {}, seen > 0);
        const data::Batch<double> same = some_batch<double>(loss, count, first);
        const model::Totals score = right.pass(same, dropout, seen > 0);
        loss_right += score.loss;
        rights += score.right;
        loss_off += off.pass(same, dropout, seen > 0).loss;
        seen += count;
      }
      const model::Totals totals = model.take_totals();
      const double rounding = static_cast<double>(std::numeric_limits<T>::epsilon()) * loss_right;
      EXPECT_NEAR(totals.loss, loss_right,
                  10 * std::abs(loss_off - loss_right) + 100 * rounding + static_cast<double>(seen) * this->p);
      EXPECT_EQ(totals.bad_step, 0u);
      EXPECT_EQ(totals.right, rights);
      EXPECT_EQ(model.take_totals().loss, 0) << "they are since the last time";

      const std::vector<T> gradients = model.copy_gradients();
      const std::vector<double> wanted = right.perceptron.copy_gradients();
      const double tolerance = 10 * largest_difference(wanted, off.perceptron.copy_gradients());
      EXPECT_LE(largest_difference(std::vector<double>(gradients.begin(), gradients.end()), wanted), tolerance);
      const double largest = std::abs(*std::max_element(wanted.begin(), wanted.end(),
                                                        [](double a, double b) { return std::abs(a) < std::abs(b); }));
      EXPECT_LT(tolerance, largest / 100) << "it would let anything through";
    }
}

// `optimizer_of` has the one of a Measure.
template <class Test, class Model, class Optimizer, class OptimizerOf>
void expect_trains_as_the_perceptron(Model& model, Optimizer& optimizer, const model::Architecture& architecture,
                                     OptimizerOf optimizer_of) {
  using T = typename Model::value_type;
  model.initialize(4);
  Measure right(architecture, 0), off(architecture, Test::p);
  const std::vector<double> start = right.perceptron.copy_parameters();
  std::uint32_t step = 0;
  for (const std::size_t count : {33, 7, 0, 64, 1, 20}) {
    const model::Dropout dropout{0.25, 7, step};
    const double rate = 0.01 / (1 + step);
    load(model, architecture.loss, count, step, dropout, rate);
    model.forward();
    std::vector<std::size_t> order;
    model.backward([&](std::size_t i) { order.push_back(i); });
    EXPECT_EQ(order, (std::vector<std::size_t>{5, 4, 3, 2, 1, 0}));
    model.update(optimizer);
    for (Measure* const measure : {&right, &off}) {
      measure->pass(some_batch<double>(architecture.loss, count, step), dropout, false, rate);
      measure->perceptron.update(optimizer_of(*measure));
    }
    ++step;
  }
  const std::vector<T> parameters = model.copy_parameters();
  const std::vector<double> wanted = right.perceptron.copy_parameters();
  const double tolerance = 10 * largest_difference(wanted, off.perceptron.copy_parameters());
  EXPECT_LE(largest_difference(std::vector<double>(parameters.begin(), parameters.end()), wanted), tolerance);
  EXPECT_LT(tolerance, largest_difference(start, wanted) / 100) << "it would let anything through";
  const std::vector<ddp::NamedBlock> state = optimizer.state(), same = optimizer_of(right).state();
  ASSERT_EQ(state.size(), same.size());
  for (std::size_t i = 0; i < state.size(); ++i) EXPECT_EQ(state[i].name, same[i].name);
}

TYPED_TEST(OnGpu, TrainsAsThePerceptronDoes) {
  const model::Architecture architecture{sizes, model::Loss::cross_entropy, true, false};
  TypeParam model(architecture, 64);
  typename TypeParam::Sgd optimizer(model.parameters(), 0.9);
  expect_trains_as_the_perceptron<OnGpu<TypeParam>>(
      model, optimizer, architecture, [](Measure & measure) -> auto& { return measure.sgd; });
}

// The first steps of Adam are as long for a gradient that is nearly 0 as for others, and go in the direction of its
// rounding: only double shows that the rest is right.
TYPED_TEST(OnGpu, TrainsWithAdamAsThePerceptronDoes) {
  if constexpr (std::is_same_v<typename TypeParam::value_type, double>) {
    const model::Architecture architecture{sizes, model::Loss::cross_entropy, true, false};
    TypeParam model(architecture, 64);
    typename TypeParam::Adam optimizer(model.parameters());
    expect_trains_as_the_perceptron<OnGpu<TypeParam>>(
        model, optimizer, architecture, [](Measure & measure) -> auto& { return measure.adam; });
  } else {
    TypeParam model({.sizes = sizes}, 64);
    typename TypeParam::Adam optimizer(model.parameters());
    model.initialize(4);
    double losses[2];
    for (std::uint32_t step = 0; step < 60; ++step) {
      load(model, model::Loss::cross_entropy, 40, 0, {}, 0.01);
      model.forward();
      model.backward([](std::size_t) {});
      model.update(optimizer);
      const double loss = model.take_totals().loss;
      if (step == 0) losses[0] = loss;
      losses[1] = loss;
    }
    EXPECT_LT(losses[1], losses[0] / 2);
  }
}

TYPED_TEST(OnGpu, TheFirstStepWithoutALossIsKept) {
  using T = typename TypeParam::value_type;
  TypeParam model({.sizes = sizes}, 64);
  model.initialize(4);
  for (std::uint32_t step = 0; step < 5; ++step) {
    data::Batch<T> batch = some_batch<T>(model::Loss::cross_entropy, 40);
    if (step == 2 || step == 3) batch.inputs[200] = std::numeric_limits<T>::quiet_NaN();
    model.load(batch, {0, 1, step}, 0);
    model.forward();
  }
  const model::Totals totals = model.take_totals();
  EXPECT_EQ(totals.bad_step, 3u) << "counted from 1";
  EXPECT_TRUE(std::isnan(totals.loss));
  EXPECT_EQ(model.take_totals().bad_step, 0u);
}

TYPED_TEST(OnGpu, RefusesABatchThatDoesNotFit) {
  TypeParam model({.sizes = sizes}, 64);
  EXPECT_THROW(load(model, model::Loss::cross_entropy, 65, 0, {}), std::logic_error);
  EXPECT_THROW(TypeParam({.sizes = {3}}, 64), std::logic_error);
}

}  // namespace perceptron_gpu_test
