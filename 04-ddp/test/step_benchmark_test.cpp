// step_benchmark: what it says adds up.
#include "fashion_mnist_ways.hpp"

namespace step_benchmark_test {

class StepBenchmark : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(By, StepBenchmark, ::testing::ValuesIn(one_way_a_library()), name_of_way);

TEST_P(StepBenchmark, ThePartsAreTheStep) {
  for (const std::string how : {"--no-overlap", "--independent"}) {
    const nlohmann::json result =
        results(GetParam(), PATH_step_benchmark, 2,
                {"--batch-size", "65", "--warm-up", "2", "--steps", "10", "--bucket-bytes", "1", how})
            .lines.at(0);
    double sum = 0;
    for (const char* part : {"forward_ms", "backward_ms", "exposed_ms", "update_ms"}) {
      EXPECT_GT(result.at(part), 0.0) << part;
      sum += result.at(part).get<double>();
    }
    // They are means over the ranks; the step is the slowest rank's, which waits for no other rank if it is
    // independent.
    EXPECT_LE(sum, result.at("step_ms")) << result;
    EXPECT_GE(sum, 0.1 * result.at("step_ms").get<double>()) << result;
    EXPECT_EQ(result.at("independent"), how == "--independent");
  }
}

}  // namespace step_benchmark_test
