// fashion_mnist as a user runs it, on small data sets of its own. trainer_test.cpp has early stopping, restart_test.cpp
// checkpoints.
#include "fashion_mnist_ways.hpp"

namespace fashion_mnist_test {

// 10 epochs that must reach 90 %, unless `settings` say otherwise.
std::vector<std::string> learn_well(Settings settings = {}) {
  settings.insert({{"--epochs", "10"}, {"--min-accuracy", "90"}});
  return learn(settings);
}

class FashionMnist : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(By, FashionMnist, ::testing::ValuesIn(ways()), name_of_way);

TEST_P(FashionMnist, LearnsOnAnyNumberOfRanks) {
  for (const int ranks : counts_for(GetParam(), {1, 7, 3})) {
    const auto [output, lines] = results(GetParam(), PATH_fashion_mnist, ranks, learn_well());
    EXPECT_SAYS(output, "301 images to learn from, 101 to test with; 669706 parameters" +
                            (ranks == 1 ? "; 1 rank, " : " in 2 buckets; " + std::to_string(ranks) + " ranks, "));
    EXPECT_SAYS(output, "epoch 10: loss ");
    EXPECT_SAYS(output, " on every rank\n");
    EXPECT_SAYS(output, "RIGHT: test accuracy ");
    ASSERT_EQ(lines.size(), 11u);
    EXPECT_EQ(lines[9].at("epoch"), 10);
    EXPECT_EQ(lines[9].at("steps"), 110);
    EXPECT_GT(lines[9].at("samples_per_second"), 0);
    EXPECT_EQ(lines[10].at("right"), true);
    EXPECT_EQ(lines[10].at("identical"), true);
    EXPECT_GE(lines[10].at("accuracy"), 90);
  }
}

TEST(FashionMnistFaults, ALossThatIsNotFiniteStopsTheRunAndNamesTheRank) {
  const auto end = quickest_way().run(PATH_fashion_mnist, 3, learn_well({{"--learning-rate", "1e6"}}));
  EXPECT_EQ(end.status, 1);
  EXPECT_MATCH(end.output, "rank [012] \\(host [^)]*\\): the loss is -?(nan|inf) in step [0-9]+; a smaller");
  EXPECT_EQ(occurrences(end.output, "the loss is"), 1u) << "one line: " << end.output;
}

// The loss is finite, but the gradient is NaN. The rank must notice before it sends the gradient to the others.
TEST(FashionMnistFaults, AGradientThatIsNaNStopsTheRunAndNamesRankAndParameter) {
  for (const std::string precision : {"float", "double"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto end = quickest_way().run(PATH_fashion_mnist, 3,
                                        learn_well({{"--nan", "1"}, {"--log-every", "1"}, {"--precision", precision}}));
    EXPECT_EQ(end.status, 1);
    EXPECT_MATCH(end.output, "rank 1 \\([^)]*\\): [^\n]*'?layer 1 weights'?[^\n]* is NaN\n");
    EXPECT_SAYS(end.output, "epoch 1 step 4 of 11: ");
    EXPECT_SAYS(end.output, "): element 0 of the gradient of 'layer 1 weights' is NaN\n");
    EXPECT_EQ(occurrences(end.output, "step 5"), 0u) << end.output;
    EXPECT_EQ(occurrences(end.output, "fashion_mnist: rank"), 1u) << "one line: " << end.output;
    EXPECT_LT(std::chrono::steady_clock::now() - start, 50s) << "it waited for the deadline";
  }
}

TEST(FashionMnistFaults, TooLowAnAccuracyFails) {
  const Result result = run(command(PATH_fashion_mnist, learn_well({{"--learning-rate", "0"}})));
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.out, "%, at least 90 % wanted");
  EXPECT_SAYS(result.out, "WRONG: test accuracy ");
}

// With the real images and all defaults: 86 % after three epochs.
TEST(FashionMnistTraining, ReachesItsAccuracy) {
  const Ranks::End end = quickest_way().run(PATH_fashion_mnist, 2, {}, 280s);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS(end.output, ", at least 86 % wanted");
}

}  // namespace fashion_mnist_test
