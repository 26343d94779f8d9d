#include "model/perceptron.hpp"
#include "ddp/philox.hpp"
#include "model/blas.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace perceptron_test {

using model::Perceptron;

const std::vector<std::size_t> small{12, 9, 7, 4};

template <class T = double>
data::Batch<T> some_batch(std::size_t count, std::uint32_t first_sample = 0) {
  data::Batch<T> batch;
  for (std::uint32_t s = first_sample; s < first_sample + count; ++s) {
    for (std::uint32_t p = 0; p < small[0]; ++p)
      batch.inputs.push_back(static_cast<T>((s * 37 + p * p * 11) % 256) / T(127.5) - 1);
    batch.labels.push_back(static_cast<std::uint8_t>(s % small.back()));
    for (std::uint32_t j = 0; j < small.back(); ++j) batch.targets.push_back(static_cast<T>((s >> j) % 2));
    batch.samples.push_back(s);
  }
  return batch;
}

template <class T>
struct Trained {
  Perceptron<T> perceptron;
  explicit Trained(model::Architecture architecture = {.sizes = small}) : perceptron(std::move(architecture), 20) {
    perceptron.gradient_storage();
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

// A perceptron written down once more, plainly and in long double, to look at the other from outside.
struct Reference {
  long double loss = 0;
  std::size_t right = 0;
  long double nearest = 1;  // the sum closest to a ReLU's kink
  long double largest = 1;  // unit
  // Of sums of absolute values: what a unit can be at most, and so what its rounding errors are fractions of.
  long double largest_sum = 1, largest_output = 1;

  Reference(const model::Architecture& architecture, const std::vector<std::vector<long double>>& parameters,
            const data::Batch<double>& batch, const model::Dropout& dropout) {
    const std::vector<std::size_t>& sizes = architecture.sizes;
    const std::size_t layers = sizes.size() - 1, outputs = sizes.back();
    for (std::size_t s = 0; s < batch.size(); ++s) {
      std::vector<long double> units(batch.inputs.begin() + static_cast<std::ptrdiff_t>(s * sizes[0]),
                                     batch.inputs.begin() + static_cast<std::ptrdiff_t>((s + 1) * sizes[0]));
      std::vector<long double> sums(sizes[0], 1);
      for (std::size_t l = 1; l <= layers; ++l) {
        const std::vector<long double>&weights = parameters[2 * l - 2], &biases = parameters[2 * l - 1];
        std::vector<long double> above(biases), above_sums(sizes[l]);
        for (std::uint32_t i = 0; i < sizes[l]; ++i) {
          above_sums[i] = std::abs(biases[i]);
          for (std::size_t j = 0; j < sizes[l - 1]; ++j) {
            above[i] += weights[i * sizes[l - 1] + j] * units[j];
            above_sums[i] += std::abs(weights[i * sizes[l - 1] + j]) * sums[j];
          }
          if (l < layers ? architecture.hidden_relu : architecture.output_relu) {
            nearest = std::min(nearest, std::abs(above[i]));
            above[i] = std::max(above[i], 0.0L);
          }
          if (l < layers && dropout.probability > 0) {
            const auto random = ddp::philox(
                {i / 4, ddp::stream_dropout + static_cast<std::uint32_t>(l), batch.samples[s], dropout.step},
                dropout.seed);
            const bool kept = std::ldexp(static_cast<long double>(random[i % 4]), -32) >= dropout.probability;
            above[i] *= kept ? 1 / (1 - static_cast<long double>(dropout.probability)) : 0;
            above_sums[i] /= 1 - static_cast<long double>(dropout.probability);
          }
          largest = std::max(largest, std::abs(above[i]));
          largest_sum = std::max(largest_sum, above_sums[i]);
        }
        units = above;
        sums = above_sums;
      }
      largest_output = std::max(largest_output, *std::max_element(sums.begin(), sums.end()));
      add(architecture.loss, units, batch, s, outputs);
    }
  }

 private:
  void add(model::Loss kind, const std::vector<long double>& z, const data::Batch<double>& batch, std::size_t s,
           std::size_t outputs) {
    if (kind == model::Loss::cross_entropy) {
      long double sum = 0;
      for (const long double out : z) sum += std::exp(out);
      loss -= std::log(std::exp(z[batch.labels[s]]) / sum);
      right += z[batch.labels[s]] == *std::max_element(z.begin(), z.end());
      return;
    }
    bool all = true;
    for (std::size_t j = 0; j < outputs; ++j) {
      const long double t = batch.targets[s * outputs + j];
      if (kind == model::Loss::mean_square) {
        loss += (z[j] - t) * (z[j] - t) / static_cast<long double>(outputs);
      } else {
        const long double yes = 1 / (1 + std::exp(-z[j]));
        loss -= t * std::log(yes) + (1 - t) * std::log(1 - yes);
        all = all && (z[j] > 0) == (t > 0.5L);
      }
    }
    right += kind == model::Loss::binary_cross_entropy && all;
  }
};

// Losses and gradients of every kind of perceptron, in two passes that add up, against Reference and its central
// differences D = (loss(p + h) - loss(p - h)) / 2h, for each parameter p.
//
// What they may differ by: as no ReLU changes sides (the test looks), the outputs are linear in a single parameter, z +
// c p. Mean square is then a parabola, whose D is exact. The third derivative of log(1 + exp(z)) is at most 1/(6
// sqrt(3)) (that of a sigmoid's slope), and that of log(sum exp(z)) the third cumulant of the c's, at most (max -
// min)^3 / (6 sqrt(3)). With 4 outputs both are at most C^3 for |c| <= C, so D is off by samples C^3 h^2 / 6. C is the
// largest unit times the gain of the layers above: their largest column sum of |weights|, times dropout's 1/(1 - p).
// Rounding, after Higham as in ddp_equality.cpp: a result of sums nested over N terms is off by N u times the same sum
// of absolute values. Those of outputs are at most A, of losses and of their derivatives by outputs 4 (1 + A)^2 each,
// and of gradients that times gain and largest unit.
using Kind = std::tuple<model::Loss, bool, bool>;  // loss, hidden ReLU, output ReLU
class PerceptronOf : public ::testing::TestWithParam<Kind> {};

TEST_P(PerceptronOf, HasLossesAndGradientsOfTheFormulas) {
  const auto [loss, hidden_relu, output_relu] = GetParam();
  Trained<double> t({.sizes = small, .loss = loss, .hidden_relu = hidden_relu, .output_relu = output_relu});
  const model::Dropout dropout{hidden_relu ? 0.25 : 0, 7, 3};
  const std::vector<data::Batch<double>> passes{some_batch(16), some_batch(7, 100)};
  constexpr double samples = 23;
  std::vector<std::vector<long double>> parameters;
  for (std::size_t i = 0; i < 6; ++i)
    parameters.emplace_back(t.perceptron.parameter(i).begin(), t.perceptron.parameter(i).end());
  const auto references = [&, &architecture = t.perceptron.architecture()] {
    return std::vector{Reference(architecture, parameters, passes[0], dropout),
                       Reference(architecture, parameters, passes[1], dropout)};
  };

  const std::vector<Reference> here = references();
  const long double sum = std::max(here[0].largest_sum, here[1].largest_sum),
                    output = std::max(here[0].largest_output, here[1].largest_output);
  long double gain = 1, chain = samples + 20;
  for (std::size_t l = 1; l < small.size(); ++l) chain += 2 * static_cast<long double>(small[l - 1]);
  for (std::size_t l = small.size() - 1; l >= 2; --l) {
    long double columns = 0;
    for (std::size_t j = 0; j < small[l - 1]; ++j) {
      long double column = 0;
      for (std::size_t i = 0; i < small[l]; ++i) column += std::abs(parameters[2 * l - 2][i * small[l - 1] + j]);
      columns = std::max(columns, column);
    }
    gain *= std::max(1.0L, columns / (1 - static_cast<long double>(dropout.probability)));
  }
  const long double u = std::numeric_limits<double>::epsilon() / 2,
                    loss_size = samples * 4 * (1 + output) * (1 + output);

  for (std::size_t i = 0; i < passes.size(); ++i) {
    const model::Score score = t.perceptron.forward(passes[i], dropout);
    t.perceptron.backward([](std::size_t) {}, i > 0);
    EXPECT_NEAR(score.loss, static_cast<double>(here[i].loss), static_cast<double>(chain * u * loss_size));
    EXPECT_EQ(score.right, here[i].right);
  }

  constexpr long double h = 1e-5L;
  const long double reach = std::max(here[0].largest, here[1].largest) * gain;  // C
  ASSERT_GT(std::min(here[0].nearest, here[1].nearest), 2 * h * reach) << "a ReLU may change sides: other samples";
  const long double u_reference = std::numeric_limits<long double>::epsilon() / 2;
  const double tolerance = static_cast<double>(samples * reach * reach * reach * h * h / 6 +
                                               chain * loss_size * (u_reference / h + u * gain * sum));
  double largest = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (std::size_t j = 0; j < parameters[i].size(); ++j) {
      long double& parameter = parameters[i][j];
      const long double value = parameter;
      const auto loss_at = [&](long double moved) {
        parameter = moved;
        const std::vector<Reference> there = references();
        return there[0].loss + there[1].loss;
      };
      const long double above = value + h, below = value - h;
      const long double difference = (loss_at(above) - loss_at(below)) / (above - below);
      parameter = value;
      EXPECT_NEAR(t.perceptron.gradient(i)[j], static_cast<double>(difference), tolerance)
          << "parameter " << i << ", element " << j;
      largest = std::max(largest, std::abs(t.perceptron.gradient(i)[j]));
    }
  EXPECT_GT(largest, 1e4 * tolerance) << "gradients of 0 would prove nothing";
}

std::string name_of(const ::testing::TestParamInfo<Kind>& info) {
  const auto [loss, hidden_relu, output_relu] = info.param;
  const char* const losses[] = {"CrossEntropy", "BinaryCrossEntropy", "MeanSquare"};
  return std::string(losses[static_cast<std::size_t>(loss)]) + (hidden_relu ? "HiddenRelu" : "HiddenLinear") +
         (output_relu ? "OutputRelu" : "OutputLinear");
}

INSTANTIATE_TEST_SUITE_P(All, PerceptronOf,
                         ::testing::Combine(::testing::Values(model::Loss::cross_entropy,
                                                              model::Loss::binary_cross_entropy,
                                                              model::Loss::mean_square),
                                            ::testing::Bool(), ::testing::Bool()),
                         name_of);

TEST(Perceptron, AnEmptyBatchHasGradientsOfZero) {
  Trained<double> t;
  std::fill(t.perceptron.gradient_storage().begin(), t.perceptron.gradient_storage().end(), 9.0);
  const auto empty = some_batch(0);
  EXPECT_EQ(t.perceptron.forward(empty, {0.25, 1, 1}).loss, 0);
  t.perceptron.backward([](std::size_t) {});
  for (const double element : t.perceptron.gradient_storage()) EXPECT_EQ(element, 0);
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
  data::Batch<double> without = some_batch(2);
  without.targets.clear();
  EXPECT_NO_THROW(t.perceptron.forward(without, {})) << "labels will do";
  Trained<double> square({.sizes = small, .loss = model::Loss::mean_square});
  EXPECT_THROW(square.perceptron.forward(without, {}), std::logic_error);
  Trained<double> linear({.sizes = small, .hidden_relu = false});
  EXPECT_THROW(linear.perceptron.forward(without, {0.5, 1, 1}), std::logic_error);
}

}  // namespace perceptron_test
