// random_mlp as a user runs it, with a small network; and what it says about its steps' times.
#include "fashion_mnist_ways.hpp"

namespace random_mlp_test {

class RandomMlp : public ::testing::Test {
 protected:
  // 5 epochs of 2 steps.
  static inline const std::vector<std::string> small{"--hidden-layers", "5", "--hidden-units", "64",
                                                     "--batch-size",    "16"};
  TemporaryFolder folder_;
};

TEST_F(RandomMlp, LearnsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    const auto [output, lines] = results(quickest_way(), PATH_random_mlp, ranks, small);
    EXPECT_SAYS(output, "RIGHT: the loss fell; parameters: ");
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_SAYS(output, "[rank " + std::to_string(rank) + "] Epoch 4 | Batchsize: 16 | Steps: 2 | Loss: 0.");
    ASSERT_EQ(lines.size(), 6u);
    EXPECT_EQ(lines[4].at("steps"), 10);
    EXPECT_LT(lines[5].at("after"), lines[5].at("before"));
    EXPECT_EQ(lines[5].at("identical"), true);
  }
}

// Also of compressed gradients in several buckets.
TEST_F(RandomMlp, BreaksAStepDownAndMeasuresItsOverlap) {
  std::vector<std::string> options = small;
  options.insert(options.end(),
                 {"--breakdown", "--measure-overlap", "3", "--compression", "bfloat16", "--bucket-bytes", "20K"});
  const auto [output, lines] = results(quickest_way(), PATH_random_mlp, 3, options);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[5].at("steps"), 10);
  for (const char* phase : {"forward", "backward", "exposed communication", "update", "step"}) {
    EXPECT_SAYS(output, std::string(phase) + "  ");
    const nlohmann::json& times = lines[5].at("breakdown").at(phase);
    EXPECT_GT(times.at("lowest_ms"), 0) << phase;
    EXPECT_LE(times.at("lowest_ms"), times.at("mean_ms")) << phase;
    EXPECT_LE(times.at("mean_ms"), times.at("highest_ms")) << phase;
  }
  const nlohmann::json& overlap = lines[6].at("overlap");
  const auto median = [&](const char* mode) { return overlap.at(mode).at("median_s").get<double>(); };
  for (const char* mode : {"overlapped", "serial", "compute only", "communication only"}) EXPECT_GT(median(mode), 0);
  EXPECT_NEAR(overlap.at("hidden"), 1 - (median("overlapped") - median("compute only")) / median("communication only"),
              1e-9);
  EXPECT_NEAR(overlap.at("hidden_serial"),
              1 - (median("serial") - median("compute only")) / median("communication only"), 1e-9);
}

// log softmax of one number is 0, whatever the number: there is no loss, and no way to a smaller one.
TEST(RandomMlpOnce, CrossEntropyOverOneClassIsExactlyZero) {
  const Result result = run({PATH_random_mlp, "--hidden-units", "64", "--loss", "cross-entropy"});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out,
              "loss of the first batch: 0.000000, and 0.000000 after 10 steps; largest gradient of the last: 0\n");
  EXPECT_SAYS(result.out, "WRONG: the loss did not fall");
}

}  // namespace random_mlp_test
