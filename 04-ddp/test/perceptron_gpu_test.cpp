// The perceptron on a GPU: as device_perceptron_test.cpp, and what only a GPU has. Skipped where there is none.
#include "model/perceptron_gpu.hpp"
#include "device_perceptron_checks.hpp"

#include <cstring>
#include <utility>

namespace perceptron_gpu_test {

using model::PerceptronGpu;

using Models = ::testing::Types<PerceptronGpu<double>, PerceptronGpu<float>, PerceptronGpu<float, __nv_bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, DevicePerceptron, Models);

template <class Model>
class Graphs : public DevicePerceptron<Model> {};
TYPED_TEST_SUITE(Graphs, Models);

// With dropout and a falling learning rate, which a replay must not take from the step that was recorded, and a smaller
// last batch.
TYPED_TEST(Graphs, RepeatStepsBitForBit) {
  using T = typename TypeParam::value_type;
  const auto train = [](bool with_graphs) {
    TypeParam model({.sizes = device_sizes}, 64);
    lay_out_gradients(model);
    model.initialize(4);
    typename TypeParam::Sgd optimizer(model.parameters(), 0.9);
    model::StepGraphs graphs;
    std::size_t backward_passes = 0;
    for (std::uint32_t step = 0; step < 30; ++step) {
      const std::size_t count = step % 5 == 4 ? 7 : 64;
      model.load(device_batch<T>(model::Loss::cross_entropy, count, step), {0.25, 7, step}, 0.05 / (1 + step));
      const auto passes = [&] {
        model.forward();
        model.backward([](std::size_t) {});
        model.update(optimizer);
        ++backward_passes;
      };
      with_graphs ? graphs.run(count, model.stream(), passes) : passes();
    }
    EXPECT_EQ(backward_passes, with_graphs ? 4u : 30u) << "two sizes, each carried out and recorded";
    const model::Totals totals = model.take_totals();
    EXPECT_EQ(totals.bad_step, 0u);
    return std::pair(model.copy_parameters(), totals.loss);
  };
  const auto plain = train(false), graphs = train(true);
  EXPECT_EQ(std::memcmp(plain.first.data(), graphs.first.data(), plain.first.size() * sizeof(T)), 0);
  EXPECT_EQ(plain.second, graphs.second);
}

}  // namespace perceptron_gpu_test
