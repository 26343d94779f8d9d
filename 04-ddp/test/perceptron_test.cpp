#include "model/perceptron.hpp"
#include "ddp/philox.hpp"
#include "model/blas.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
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
    perceptron.initialize(4);
  }
  model::Totals forward(const data::Batch<T>& batch, const model::Dropout& dropout) {
    perceptron.load(batch, dropout);
    perceptron.forward();
    return perceptron.take_totals();
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

using Complex = std::complex<long double>;

// A second, plain implementation of the perceptron, in long double. It also computes the derivative of the loss with
// respect to a parameter p: replace p by p + ih with a tiny h, and divide the loss's imaginary part by h. This does not
// subtract nearly equal numbers, so the derivative is as exact as the loss (Squire and Trapp, Using complex variables
// to estimate derivatives of real functions, SIAM Review 40, 1998).
struct Reference {
  Complex loss = 0;
  std::size_t right = 0;
  // Of sums of absolute values: what a unit can be at most, and so what its rounding errors are fractions of.
  long double largest_sum = 1, largest_output = 1;

  Reference(const model::Architecture& architecture, const std::vector<std::vector<Complex>>& parameters,
            const data::Batch<double>& batch, const model::Dropout& dropout) {
    const std::vector<std::size_t>& sizes = architecture.sizes;
    const std::size_t layers = sizes.size() - 1, outputs = sizes.back();
    for (std::size_t s = 0; s < batch.size(); ++s) {
      const auto inputs = batch.inputs.begin() + static_cast<std::ptrdiff_t>(s * sizes[0]);
      std::vector<Complex> units(inputs, inputs + static_cast<std::ptrdiff_t>(sizes[0]));
      std::vector<long double> sums(sizes[0], 1);
      for (std::size_t l = 1; l <= layers; ++l) {
        const std::vector<Complex>&weights = parameters[2 * l - 2], &biases = parameters[2 * l - 1];
        std::vector<Complex> above(biases);
        std::vector<long double> above_sums(sizes[l]);
        for (std::uint32_t i = 0; i < sizes[l]; ++i) {
          above_sums[i] = std::abs(biases[i]);
          for (std::size_t j = 0; j < sizes[l - 1]; ++j) {
            above[i] += weights[i * sizes[l - 1] + j] * units[j];
            above_sums[i] += std::abs(weights[i * sizes[l - 1] + j]) * sums[j];
          }
          if ((l < layers ? architecture.hidden_relu : architecture.output_relu) && above[i].real() < 0) above[i] = 0;
          if (l < layers && dropout.probability > 0) {
            const auto random = ddp::philox(
                {i / 4, ddp::stream_dropout + static_cast<std::uint32_t>(l), batch.samples[s], dropout.step},
                dropout.seed);
            const bool kept = std::ldexp(static_cast<long double>(random[i % 4]), -32) >= dropout.probability;
            above[i] *= kept ? 1 / (1 - static_cast<long double>(dropout.probability)) : 0;
            above_sums[i] /= 1 - static_cast<long double>(dropout.probability);
          }
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
  void add(model::Loss kind, const std::vector<Complex>& z, const data::Batch<double>& batch, std::size_t s,
           std::size_t outputs) {
    if (kind == model::Loss::cross_entropy) {
      const auto below = [](Complex a, Complex b) { return a.real() < b.real(); };
      Complex sum = 0;
      for (const Complex out : z) sum += std::exp(out);
      loss -= std::log(std::exp(z[batch.labels[s]]) / sum);
      right += z[batch.labels[s]] == *std::max_element(z.begin(), z.end(), below);
      return;
    }
    bool all = true;
    for (std::size_t j = 0; j < outputs; ++j) {
      const long double t = batch.targets[s * outputs + j];
      if (kind == model::Loss::mean_square) {
        loss += (z[j] - t) * (z[j] - t) / static_cast<long double>(outputs);
      } else {
        const Complex yes = 1.0L / (1.0L + std::exp(-z[j]));
        loss -= t * std::log(yes) + (1 - t) * std::log(1.0L - yes);
        all = all && (z[j].real() > 0) == (t > 0.5L);
      }
    }
    right += kind == model::Loss::binary_cross_entropy && all;
  }
};

// Losses and gradients of every kind of perceptron, in two passes that add up, against Reference. They differ by
// rounding alone. After Higham, as in ddp_equality.cpp, a result of sums nested over N terms is off by N u times the
// same sum of absolute values. Those of outputs are at most A, of losses and of their derivatives by outputs 4 (1 +
// A)^2 each, and of gradients that times the largest unit and the gain of the layers above: their largest column sums
// of |weights|, times dropout's 1/(1 - p).
using Kind = std::tuple<model::Loss, bool, bool>;  // loss, hidden ReLU, output ReLU
class PerceptronOf : public ::testing::TestWithParam<Kind> {};

TEST_P(PerceptronOf, HasLossesAndGradientsOfTheFormulas) {
  const auto [loss, hidden_relu, output_relu] = GetParam();
  Trained<double> t({.sizes = small, .loss = loss, .hidden_relu = hidden_relu, .output_relu = output_relu});
  const model::Dropout dropout{hidden_relu ? 0.25 : 0, 7, 3};
  const std::vector<data::Batch<double>> passes{some_batch(16), some_batch(7, 100)};
  constexpr double samples = 23;
  std::vector<std::vector<Complex>> parameters;
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
    const model::Totals score = t.forward(passes[i], dropout);
    t.perceptron.backward([](std::size_t) {}, i > 0);
    EXPECT_NEAR(score.loss, static_cast<double>(here[i].loss.real()), static_cast<double>(chain * u * loss_size));
    EXPECT_EQ(score.right, here[i].right);
  }

  const double tolerance = static_cast<double>(2 * chain * u * loss_size * gain * sum);
  double largest = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (std::size_t j = 0; j < parameters[i].size(); ++j) {
      constexpr long double h = 0x1p-100L;
      parameters[i][j].imag(h);
      const std::vector<Reference> there = references();
      parameters[i][j].imag(0);
      const long double derivative = (there[0].loss + there[1].loss).imag() / h;
      EXPECT_NEAR(t.perceptron.gradient(i)[j], static_cast<double>(derivative), tolerance)
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
    perceptron.load(batch, {0.25, 1, 1});
    perceptron.forward();
    const double mean = std::log(std::exp(perceptron.take_totals().loss) - 1);
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
  EXPECT_THROW(t.forward(large, {}), std::logic_error);
  data::Batch<double> torn = some_batch(2);
  torn.inputs.pop_back();
  EXPECT_THROW(t.forward(torn, {}), std::logic_error);
  data::Batch<double> without = some_batch(2);
  without.targets.clear();
  EXPECT_NO_THROW(t.forward(without, {})) << "labels will do";
  Trained<double> square({.sizes = small, .loss = model::Loss::mean_square});
  EXPECT_THROW(square.forward(without, {}), std::logic_error);
  Trained<double> linear({.sizes = small, .hidden_relu = false});
  EXPECT_THROW(linear.forward(without, {0.5, 1, 1}), std::logic_error);
}

}  // namespace perceptron_test
