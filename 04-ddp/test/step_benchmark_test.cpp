// step_benchmark: what it says adds up.
#include "fashion_mnist_ways.hpp"

#include <testing/faults.hpp>
#include <testing/json_lines.hpp>
#include <testing/temporary_folder.hpp>

#include <nlohmann/json.hpp>

namespace step_benchmark_test {

class StepBenchmark : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(By, StepBenchmark, ::testing::ValuesIn(one_way_a_library()),
                         [](const auto& instance) { return instance.param.name(); });

TEST_P(StepBenchmark, ThePartsAreTheStep) {
  for (const std::string how : {"--no-overlap", "--independent"}) {
    const multinode::testing::TemporaryFolder folder;
    const std::string file = folder / "results";
    const Ranks::End end = GetParam().run(
        PATH_step_benchmark, 2,
        {"--batch-size", "65", "--warm-up", "2", "--steps", "10", "--bucket-bytes", "1", how, "--json", file});
    ASSERT_EQ(end.status, 0) << end.output;
    const nlohmann::json result = multinode::testing::json_lines(file).at(1);
    double sum = 0;
    for (const char* part : {"forward_ms", "backward_ms", "exposed_ms", "update_ms"}) {
      EXPECT_GT(result.at(part), 0.0) << part;
      sum += result.at(part).get<double>();
    }
    // They are means over the ranks; the step is the slowest rank's, which waits for nobody if it is independent.
    EXPECT_LE(sum, result.at("step_ms")) << result;
    EXPECT_GE(sum, 0.1 * result.at("step_ms").get<double>()) << result;
    EXPECT_GT(result.at("products_ms"), 0.0);
    EXPECT_EQ(result.at("independent"), how == "--independent");
  }
}

TEST(StepBenchmarkOnce, RefusesWhatDoesNotFit) {
  const Result result = run({PATH_step_benchmark, "--steps", "0"});
  EXPECT_EQ(result.status, 2);
  EXPECT_SAYS(result.err, "--steps must be");
}

}  // namespace step_benchmark_test
