#include "model/perceptron.hpp"
#include "ddp/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <limits>
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

using Complex = std::complex<long double>;

// A second, plain implementation of the perceptron, in long double. It also computes the derivative of the loss with
// respect to a parameter p: replace p by p + ih with a tiny h, and divide the loss's imaginary part by h. This does not
// subtract nearly equal numbers, so the derivative is as exact as the loss (Squire and Trapp, Using complex variables
// to estimate derivatives of real functions, SIAM Review 40, 1998).
struct Reference {
  Complex loss = 0;
  std::size_t right = 0;

  Reference(const model::Architecture& architecture, const std::vector<std::vector<Complex>>& parameters,
            const data::Batch<double>& batch, const model::Dropout& dropout) {
    const std::vector<std::size_t>& sizes = architecture.sizes;
    const std::size_t layers = sizes.size() - 1, outputs = sizes.back();
    for (std::size_t s = 0; s < batch.size(); ++s) {
      const auto inputs = batch.inputs.begin() + static_cast<std::ptrdiff_t>(s * sizes[0]);
      std::vector<Complex> units(inputs, inputs + static_cast<std::ptrdiff_t>(sizes[0]));
      for (std::size_t l = 1; l <= layers; ++l) {
        const std::vector<Complex>&weights = parameters[2 * l - 2], &biases = parameters[2 * l - 1];
        std::vector<Complex> above(biases);
        for (std::uint32_t i = 0; i < sizes[l]; ++i) {
          for (std::size_t j = 0; j < sizes[l - 1]; ++j) above[i] += weights[i * sizes[l - 1] + j] * units[j];
          if ((l < layers ? architecture.hidden_relu : architecture.output_relu) && above[i].real() < 0) above[i] = 0;
          if (l < layers && dropout.probability > 0) {
            const auto random = ddp::philox(
                {i / 4, ddp::stream_dropout + static_cast<std::uint32_t>(l), batch.samples[s], dropout.step},
                dropout.seed);
            const bool kept = std::ldexp(static_cast<long double>(random[i % 4]), -32) >= dropout.probability;
            above[i] *= kept ? 1 / (1 - static_cast<long double>(dropout.probability)) : 0;
          }
        }
        units = above;
      }
      add(architecture.loss, units, batch, s, outputs);
    }
  }

 private:
  void add(model::Loss kind, const std::vector<Complex>& z, const data::Batch<double>& batch, std::size_t s,
           std::size_t outputs) {
    if (kind == model::Loss::cross_entropy) {
      Complex sum = 0;
      for (const Complex out : z) sum += std::exp(out);
      loss -= std::log(std::exp(z[batch.labels[s]]) / sum);
      right += std::ranges::max_element(z, {}, [](Complex out) { return out.real(); }) == z.begin() + batch.labels[s];
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

// Losses and gradients of every kind of perceptron, in two passes that add up, against Reference. Rounding alone tells
// them apart: numbers of order 1 to 100, each from some 100 operations with a relative error of 1e-16.
using Kind = std::tuple<model::Loss, bool, bool>;  // loss, hidden ReLU, output ReLU
class PerceptronOf : public ::testing::TestWithParam<Kind> {};

TEST_P(PerceptronOf, HasLossesAndGradientsOfTheFormulas) {
  const auto [loss, hidden_relu, output_relu] = GetParam();
  Trained<double> t({.sizes = small, .loss = loss, .hidden_relu = hidden_relu, .output_relu = output_relu});
  const model::Dropout dropout{hidden_relu ? 0.25 : 0, 7, 3};
  const std::vector<data::Batch<double>> passes{some_batch(16), some_batch(7, 100)};
  constexpr double tolerance = 1e-11;
  std::vector<std::vector<Complex>> parameters;
  for (std::size_t i = 0; i < 6; ++i)
    parameters.emplace_back(t.perceptron.parameter(i).begin(), t.perceptron.parameter(i).end());
  const auto references = [&, &architecture = t.perceptron.architecture()] {
    return std::vector{Reference(architecture, parameters, passes[0], dropout),
                       Reference(architecture, parameters, passes[1], dropout)};
  };

  const std::vector<Reference> here = references();
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const model::Totals score = t.forward(passes[i], dropout);
    t.perceptron.backward([](std::size_t) {}, i > 0);
    EXPECT_NEAR(score.loss, static_cast<double>(here[i].loss.real()), tolerance);
    EXPECT_EQ(score.right, here[i].right);
  }

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
  EXPECT_GT(largest, 0.1) << "gradients of 0 would prove nothing";
}

TEST(Perceptron, CallsInAnotherOrderAreErrors) {
  Trained<double> t;
  model::Sgd<double> sgd(t.perceptron.parameters());
  const data::Batch<double> batch = some_batch(3);
  EXPECT_THROW(t.perceptron.forward(), std::logic_error);
  t.forward(batch, {});
  EXPECT_THROW(t.perceptron.forward(), std::logic_error) << "twice";
  EXPECT_THROW(t.perceptron.update(sgd), std::logic_error) << "by gradients of the batch before";
  t.perceptron.backward([](std::size_t) {});
  t.perceptron.update(sgd);
  EXPECT_THROW(t.perceptron.update(sgd), std::logic_error) << "twice";
}

// By hand: where PyTorch's torch.tensor(outputs).argmax() is.
TEST(Accuracy, CountsTheFirstLargestOutputAndNanAsTheLargest) {
  constexpr float x = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const struct {
    std::array<float, 4> outputs;
    std::size_t argmax;
  } cases[] = {{{0, 0, 0, 0}, 0},        {{1, 3, 2, 3}, 1},   {{-1, -1, 5, 5}, 2},        {{-0.0f, 0, -1, 0}, 0},
               {{1, 2, 3, 4}, 3},        {{9, x, 9, 9}, 1},   {{x, x, x, x}, 0},          {{inf, 1, x, x}, 2},
               {{-inf, 7, inf, inf}, 2}, {{x, 1, inf, 2}, 0}, {{-inf, -inf, -inf, 0}, 3}, {{1, 1, 2, x}, 3}};
  for (const auto& [outputs, argmax] : cases)
    for (std::size_t label = 0; label < outputs.size(); ++label) {
      std::array<float, 4> errors;
      EXPECT_EQ(model::score_sample<float>(model::Loss::cross_entropy, false, 4, outputs.data(), nullptr, label,
                                           errors.data(), model::OneLane())
                    .right,
                label == argmax)
          << "label " << label << " of " << ::testing::PrintToString(outputs);
    }
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

}  // namespace perceptron_test
