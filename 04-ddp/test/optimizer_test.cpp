#include "model/perceptron.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace optimizer_test {

using model::Adam;
using model::Sgd;

// Two parameters, of 3 elements and of 1, and an optimizer for them.
template <class Optimizer, class T>
struct Trained {
  std::vector<T> first{T(0.5), T(-1.25), T(3)}, second{T(2)};
  model::Cpu cpu;
  Optimizer optimizer;

  template <class... Settings>
  explicit Trained(Settings... settings) : optimizer(parameters(), settings...) {}
  std::vector<ddp::NamedBlock> parameters() {
    return {{"first", {3}, std::span(first)}, {"second", {1}, std::span(second)}};
  }
  // gradient(element, step), step from 0; the elements of both parameters, in order
  void step(const std::function<double(std::size_t, int)>& gradient, int step, double learning_rate) {
    std::vector<T> all;
    for (std::size_t j = 0; j < 4; ++j) all.push_back(static_cast<T>(gradient(j, step)));
    const model::StepSettings<T> settings = model::settings_of<T>({}, learning_rate);
    optimizer.begin_step(cpu, settings);
    model::update_parameter(cpu, optimizer, 0, std::span(first), all.data(), settings);
    model::update_parameter(cpu, optimizer, 1, std::span(second), all.data() + 3, settings);
  }
};
template <class T>
using BySgd = Trained<Sgd<T>, T>;
template <class T>
using ByAdam = Trained<Adam<T>, T>;

double some_gradient(std::size_t j, int step) {
  const double s = step;
  return std::vector{0.3 - 0.2 * s, 1e-9 * (s + 1), -4 + s * s, std::sin(s)}[j];
}

// All tests run in both precisions.
template <class T>
class Optimizers : public ::testing::Test {
 protected:
  static constexpr long double u = std::numeric_limits<T>::epsilon() / 2;
};
using Precisions = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Optimizers, Precisions);

// Printed by PyTorch 2.15:
//   p = torch.nn.Parameter(torch.tensor([0.5, -1.25, 3.0], dtype=torch.float64))
//   o = torch.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01)     and     torch.optim.Adam([p], lr=0.1)
//   for s in range(4):
//     p.grad = torch.tensor([0.3 - 0.2 * s, 1e-9 * (s + 1), -4.0 + s * s], dtype=torch.float64)
//     o.step(); print(p.tolist())
TYPED_TEST(Optimizers, AgreeWithPyTorch) {
  using T = TypeParam;
  const double tolerance = 50 * static_cast<double>(this->u);  // numbers below 5, rounded some ten times a step
  const double sgd[4][3] = {{0.4695, -1.2487500001, 3.3970000000000002},
                            {0.4315805, -1.2463762503899, 4.050903},
                            {0.40702136949999995, -1.2429934997004202, 4.635364797},
                            {0.41451113068049994, -1.2387060309801878, 4.656745049503001}};
  const double adam[4][3] = {{0.4000000033333332, -1.259090909090909, 3.09999999975},
                             {0.3128936121571956, -1.2722699629102818, 3.1982575076179094},
                             {0.26797679981632744, -1.2892926895848187, 3.274210845932346},
                             {0.2797195674182149, -1.3099468411732045, 3.2770562879687457}};
  BySgd<T> a(0.9, 0.01);
  ByAdam<T> b;
  for (int k = 0; k < 4; ++k) {
    a.step(some_gradient, k, 0.1);
    b.step(some_gradient, k, 0.1);
    for (std::size_t j = 0; j < 3; ++j) {
      EXPECT_NEAR(a.first[j], sgd[k][j], tolerance) << "element " << j << ", step " << k;
      EXPECT_NEAR(b.first[j], adam[k][j], tolerance) << "element " << j << ", step " << k;
    }
  }
}

template <class T, class Optimizer>
bool holds_subnormals(Optimizer& optimizer) {
  for (const ddp::NamedBlock& block : optimizer.state())
    if (block.block.type == multinode::data_type_of<T>())
      for (const T value : std::span(static_cast<const T*>(block.block.data), block.block.count))
        if (std::fpclassify(value) == FP_SUBNORMAL) return true;
  return false;
}

// A dead unit's gradients are 0 from some step on.
TYPED_TEST(Optimizers, StatesOfDeadUnitsDoNotBecomeSubnormal) {
  using T = TypeParam;
  // A thousandth of its square is 1000 times the smallest normal number: 0.999^k has it below that after 6900 steps.
  const double small = 1000 * std::sqrt(static_cast<double>(std::numeric_limits<T>::min()));
  const auto once = [&](std::size_t, int step) { return step == 0 ? small : 0; };
  BySgd<T> sgd(0.9);
  ByAdam<T> adam;
  for (int k = 0; k < 10000; ++k) {
    sgd.step(once, k, 0.1);
    adam.step(once, k, 0.1);
    ASSERT_FALSE(holds_subnormals<T>(sgd.optimizer)) << "velocity, step " << k;
    ASSERT_FALSE(holds_subnormals<T>(adam.optimizer)) << "mean or mean of squares, step " << k;
  }
}

}  // namespace optimizer_test
