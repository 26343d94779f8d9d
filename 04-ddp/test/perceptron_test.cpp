#include "model/perceptron.hpp"
#include "model/blas.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace {

using model::Perceptron;

const std::vector<std::size_t> small{12, 9, 7, 4};

template <class T = double>
data::Batch<T> some_batch(std::size_t count, std::uint32_t first_sample = 0) {
  data::Batch<T> batch;
  for (std::uint32_t s = first_sample; s < first_sample + count; ++s) {
    for (std::uint32_t p = 0; p < small[0]; ++p)
      batch.inputs.push_back(static_cast<T>((s * 37 + p * p * 11) % 256) / T(127.5) - 1);
    batch.labels.push_back(static_cast<std::uint8_t>(s % small.back()));
    batch.samples.push_back(s);
  }
  return batch;
}

template <class T>
struct Trained {
  Perceptron<T> perceptron{{.sizes = small}, 20};
  model::Sgd<T> optimizer{perceptron.parameters(), 0.5};
  std::vector<std::span<T>> gradients;
  Trained() {
    std::size_t at = 0;
    for (const ddp::NamedBlock& parameter : perceptron.parameters()) {
      const std::size_t count = parameter.block.count;
      gradients.push_back(perceptron.gradient_storage().subspan(at, count));
      at += count;
    }
    perceptron.set_gradients(gradients);
    perceptron.initialize(4);
  }
};

TEST(Blas, ProductsOfEveryKind) {
  // op(a) = {{1, 2, 3}, {4, 5, 6}}, op(b) = {{1, 0}, {2, 1}, {0, 3}}
  const std::vector<double> product{5, 11, 14, 23};
  std::vector<double> c(4, 1);
  model::multiply(model::Transpose::none, 2, 2, 3, std::vector<double>{1, 2, 3, 4, 5, 6}.data(),
                  std::vector<double>{1, 0, 2, 1, 0, 3}.data(), 0.0, c.data());
  EXPECT_EQ(c, product);
  model::multiply(model::Transpose::first, 2, 2, 3, std::vector<double>{1, 4, 2, 5, 3, 6}.data(),
                  std::vector<double>{1, 0, 2, 1, 0, 3}.data(), 0.0, c.data());
  EXPECT_EQ(c, product);
  model::multiply(model::Transpose::second, 2, 2, 3, std::vector<double>{1, 2, 3, 4, 5, 6}.data(),
                  std::vector<double>{1, 2, 0, 0, 1, 3}.data(), 1.0, c.data());
  EXPECT_EQ(c, (std::vector<double>{10, 22, 28, 46}));
  model::multiply(model::Transpose::first, 2, 2, 0, c.data(), c.data(), 0.0, c.data());
  EXPECT_EQ(c, std::vector<double>(4, 0.0)) << "an empty product";
}

// The central difference with h = 1e-5 is off by h^2/6 times a third derivative of order 1, 2e-11, and by rounding, 16
// samples' losses of about 1.4 in sums of 2^-52: 16 * 1.4 * 2.2e-16 / 1e-5 = 5e-10, some times over.
TEST(Perceptron, GradientsAreTheLossesDifferences) {
  Trained<double> t;
  const data::Batch<double> batch = some_batch(16);
  const model::Dropout dropout{0.25, 7, 3};
  t.perceptron.forward(batch, dropout);
  t.perceptron.backward([](std::size_t) {});
  constexpr double h = 1e-5;
  double largest = 0;
  for (std::size_t i = 0; i < t.gradients.size(); ++i)
    for (std::size_t j = 0; j < t.gradients[i].size(); ++j) {
      double& parameter = t.perceptron.parameter(i)[j];
      const double here = parameter;
      parameter = here + h;
      const double above = t.perceptron.forward(batch, dropout).loss;
      parameter = here - h;
      const double below = t.perceptron.forward(batch, dropout).loss;
      parameter = here;
      EXPECT_NEAR(t.gradients[i][j], (above - below) / (2 * h), 2e-8) << "parameter " << i << ", element " << j;
      largest = std::max(largest, std::abs(t.gradients[i][j]));
    }
  EXPECT_GT(largest, 0.5) << "gradients of 0 would prove nothing";
}

TEST(Perceptron, GradientsAreReadyFromTheLastToTheFirst) {
  Trained<double> t;
  const auto batch = some_batch(3);
  t.perceptron.forward(batch, {});
  std::vector<std::size_t> order;
  t.perceptron.backward([&](std::size_t i) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<std::size_t>{5, 4, 3, 2, 1, 0}));
}

TEST(Perceptron, AnEmptyBatchHasGradientsOfZero) {
  Trained<double> t;
  std::fill(t.perceptron.gradient_storage().begin(), t.perceptron.gradient_storage().end(), 9.0);
  const auto empty = some_batch(0);
  EXPECT_EQ(t.perceptron.forward(empty, {0.25, 1, 1}).loss, 0);
  t.perceptron.backward([](std::size_t) {});
  for (const double element : t.perceptron.gradient_storage()) EXPECT_EQ(element, 0);
}

TEST(Perceptron, GradientsOfABatchAreTheSumsOfItsParts) {
  Trained<double> whole, part;
  const model::Dropout dropout{0.25, 7, 3};
  const auto batch = some_batch(16);
  whole.perceptron.forward(batch, dropout);
  whole.perceptron.backward([](std::size_t) {});
  std::vector<double> sum(whole.perceptron.gradient_storage().size());
  for (const auto& [first, count] : {std::pair{0u, 5u}, std::pair{5u, 11u}}) {
    const auto some = some_batch(count, first);
    part.perceptron.forward(some, dropout);
    part.perceptron.backward([](std::size_t) {});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part.perceptron.gradient_storage()[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], whole.perceptron.gradient_storage()[i], 1e-13);
}

// The loss of one sample shows its masks: it must be the same in any company, and change with every part of the key.
TEST(Dropout, MasksDependOnSeedStepAndSampleAlone) {
  Trained<double> t;
  const auto loss_of = [&](const data::Batch<double>& batch, const model::Dropout& dropout) {
    return t.perceptron.forward(batch, dropout).loss;
  };
  const data::Batch<double> one = some_batch(1, 5);
  const double alone = loss_of(one, {0.25, 7, 3});
  const double rest = loss_of(some_batch(5), {0.25, 7, 3}), together = loss_of(some_batch(6), {0.25, 7, 3});
  EXPECT_NEAR(together - rest, alone, 1e-13);
  EXPECT_EQ(loss_of(one, {0.25, 7, 3}), alone);
  EXPECT_NE(loss_of(one, {0.25, 7, 4}), alone);
  EXPECT_NE(loss_of(one, {0.25, 8, 3}), alone);
  data::Batch<double> other = one;
  other.samples[0] = 6;
  EXPECT_NE(loss_of(other, {0.25, 7, 3}), alone);
}

// With weights 0 and biases 1 every hidden unit is 1 before dropout, and the first output is the mean of what is left
// of layer 2: the share that is kept, times its scale.
TEST(Dropout, KeepsTheShareItShouldAndTheMean) {
  const std::size_t wide = 1000;
  Perceptron<double> perceptron({.sizes = {1, 10, wide, 2}}, 100);
  for (std::size_t i = 0; i < 6; ++i) std::fill(perceptron.parameter(i).begin(), perceptron.parameter(i).end(), 0.0);
  std::fill(perceptron.parameter(3).begin(), perceptron.parameter(3).end(), 1.0);
  std::fill_n(perceptron.parameter(4).begin(), wide, 1.0 / wide);
  data::Batch<double> batch;
  double sum = 0, squares = 0;
  for (std::uint32_t s = 0; s < 100; ++s) {
    batch.inputs = {-1};
    batch.labels = {1};  // loss = log(1 + exp(mean of layer 2))
    batch.samples = {s};
    const double mean = std::log(std::exp(perceptron.forward(batch, {0.25, 1, 1}).loss) - 1);
    sum += mean;
    squares += mean * mean;
  }
  // The mean of 100,000 units that are 4/3 with a probability of 3/4: deviation sqrt(1/3 / 1e5) = 0.0018.
  EXPECT_NEAR(sum / 100, 1, 5 * 0.0018);
  // And the samples' masks are independent: means of 1000 units deviate by sqrt(1/3 / 1000) = 0.018, +- 7 %.
  EXPECT_NEAR(std::sqrt(squares / 100 - sum / 100 * sum / 100), 0.018, 0.018 * 0.35);
}

TEST(Dropout, ThresholdsAreExact) {
  EXPECT_EQ(model::dropout_threshold(0), 0u);
  EXPECT_EQ(model::dropout_threshold(0.25), 1u << 30);
  EXPECT_EQ(model::dropout_threshold(0.5), 1u << 31);
}

TEST(Perceptron, MomentumDescends) {
  Trained<double> t;
  const double before = t.perceptron.parameter(5)[0];
  std::fill(t.perceptron.gradient_storage().begin(), t.perceptron.gradient_storage().end(), 2.0);
  t.perceptron.update(t.optimizer, 0.5);
  EXPECT_DOUBLE_EQ(t.perceptron.parameter(5)[0], before - 1);
  t.perceptron.update(t.optimizer, 0.5);  // velocity 0.5 * 2 + 2
  EXPECT_DOUBLE_EQ(t.perceptron.parameter(5)[0], before - 1 - 1.5);
}

TEST(Perceptron, SubnormalVelocitiesEndAndNansDoNot) {
  Trained<float> t;
  std::fill(t.perceptron.gradient_storage().begin(), t.perceptron.gradient_storage().end(), 1e-30f);
  t.perceptron.update(t.optimizer, 1);
  const float before = t.perceptron.parameter(0)[0];
  t.gradients[0][0] = std::nanf("");
  t.perceptron.update(t.optimizer, 1);
  EXPECT_TRUE(std::isnan(t.perceptron.parameter(0)[0])) << "a NaN must not be taken for something small";
  EXPECT_FALSE(std::isnan(before));
}

TEST(Perceptron, TheSeedMakesTheStart) {
  Trained<float> a, b;
  EXPECT_EQ(a.perceptron.copy_parameters(), b.perceptron.copy_parameters());
  b.perceptron.initialize(5);
  EXPECT_NE(a.perceptron.copy_parameters(), b.perceptron.copy_parameters());
  const auto weights = a.perceptron.parameter(0);
  const float bound = 1 / std::sqrt(12.0f);
  EXPECT_GT(*std::max_element(weights.begin(), weights.end()), 0.8f * bound);
  EXPECT_LT(*std::min_element(weights.begin(), weights.end()), -0.8f * bound);
  for (const float weight : weights) EXPECT_LE(std::abs(weight), bound);
}

TEST(Perceptron, RefusesABatchThatDoesNotFit) {
  Trained<double> t;
  const auto large = some_batch(21);
  EXPECT_THROW(t.perceptron.forward(large, {}), std::logic_error);
  data::Batch<double> torn = some_batch(2);
  torn.inputs.pop_back();
  EXPECT_THROW(t.perceptron.forward(torn, {}), std::logic_error);
}

}  // namespace
