// The programs as a user runs them, on small data sets of their own.
#include "fashion_mnist_ways.hpp"

#include <iostream>
#include <regex>

namespace fashion_mnist_test {

class FashionMnist : public ::testing::TestWithParam<Way> {
 protected:
  Ranks::End run(int ranks, const std::vector<std::string>& options) {
    return GetParam().run(PATH_fashion_mnist, ranks, options);
  }
};

class FashionMnistQuickly : public FashionMnist {};  // what depends neither on the launcher nor on the library

// 10 epochs that must reach 90 %, unless `settings` say otherwise.
std::vector<std::string> learn_well(Settings settings = {}) {
  settings.insert({{"--epochs", "10"}, {"--min-accuracy", "90"}});
  return learn(settings);
}

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

TEST_P(FashionMnistQuickly, StopsWhenItGetsNoBetterAndKeepsTheBest) {
  const TemporaryFolder folder;
  const Settings settings{{"--optimizer", "adam"}, {"--learning-rate", "0.001"}, {"--epochs", "50"},
                          {"--patience", "2"},     {"--min-accuracy", "95"},     {"--checkpoint", folder.path()}};
  const Ranks::End end = run(2, learn_well(settings)), again = run(2, learn_well(settings));
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS(end.output, "stopped: the test accuracy has not been better for 2 epochs\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "best.checkpoint"));
  EXPECT_SAYS(again.output, "stopped: the test accuracy has not been better for 2 epochs\n");
  EXPECT_EQ(occurrences(again.output, ": loss"), 0u) << again.output;
}

TEST_P(FashionMnistQuickly, ARankWithOtherParametersIsFound) {
  const Ranks::End end = run(3, learn_well({{"--corrupt", "1"}, {"--epochs", "1"}}));
  EXPECT_EQ(end.status, 1);
  EXPECT_SAYS(end.output, " on rank 1\n");
  EXPECT_SAYS(end.output, "the ranks' parameters differ");
}

TEST_P(FashionMnistQuickly, ALossThatIsNotFiniteStopsTheRunAndNamesTheRank) {
  const Ranks::End end = run(3, learn_well({{"--no-average", ""}, {"--learning-rate", "1e6"}}));
  EXPECT_EQ(end.status, 1);
  EXPECT_TRUE(std::regex_search(
      end.output, std::regex("rank [012] \\(host [^)]*\\): the loss is -?(nan|inf) in step [0-9]+; a smaller")))
      << end.output;
  EXPECT_EQ(occurrences(end.output, "the loss is"), 1u) << "one line: " << end.output;
}

// The loss is finite, but the gradient is NaN. The rank must notice before it sends the gradient to the others.
TEST_P(FashionMnistQuickly, AGradientThatIsNaNStopsTheRunAndNamesRankAndParameter) {
  for (const std::string precision : {"float", "double"}) {
    const auto start = std::chrono::steady_clock::now();
    const Ranks::End end = run(3, learn_well({{"--nan", "1"}, {"--log-every", "1"}, {"--precision", precision}}));
    EXPECT_EQ(end.status, 1);
    EXPECT_TRUE(
        std::regex_search(end.output, std::regex("rank 1 \\([^)]*\\): [^\n]*'?layer 1 weights'?[^\n]* is NaN\n")))
        << end.output;
    EXPECT_SAYS(end.output, "epoch 1 step 4 of 11: ");
    EXPECT_EQ(occurrences(end.output, "step 5"), 0u) << end.output;
    EXPECT_EQ(occurrences(end.output, "fashion_mnist: rank"), 1u) << "one line: " << end.output;
    EXPECT_LT(std::chrono::steady_clock::now() - start, 50s) << "it waited for the deadline";
  }
}

// All ranks check --epochs before they meet, and --corrupt afterwards.
TEST_P(FashionMnistQuickly, BadCommandLinesAreRefusedOnce) {
  for (const std::string option : {"--epochs", "--corrupt"})
    expect_refused({{{PATH_fashion_mnist, option, "-2"}, option + " must be from "}}, 2);
}

TEST_P(FashionMnistQuickly, DamagedDataAreNamedOnce) {
  const TemporaryFolder folder;
  write_data_set(folder.path(), 30, 30, true);
  const auto images = folder / "train-images-idx3-ubyte.gz";
  std::filesystem::resize_file(images, std::filesystem::file_size(images) / 2);
  const Ranks::End end = run(3, {"--data", folder.path()});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_EQ(occurrences(end.output, images.string() + ": the gzip data is cut off; get the file again\n"), 1u)
      << end.output;
}

INSTANTIATE_TEST_SUITE_P(By, FashionMnist, ::testing::ValuesIn(ways()), name_of_way);
INSTANTIATE_TEST_SUITE_P(By, FashionMnistQuickly, ::testing::Values(quickest_way()), name_of_way);

TEST(FashionMnistOnce, TooLowAnAccuracyFails) {
  const Result result = run(command(PATH_fashion_mnist, learn_well({{"--learning-rate", "0"}})));
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.out, "%, at least 90 % wanted");
  EXPECT_SAYS(result.out, "WRONG: test accuracy ");
}

// With the real images.
TEST(FashionMnistTraining, ReachesItsAccuracy) {
  const std::tuple<int, const char*, double> cases[] = {{1, "3", 86}, {4, "3", 86}, {2, "10", 88}};
  for (const auto& [ranks, epochs, percent] : cases) {
    const Ranks::End end = quickest_way().run(PATH_fashion_mnist, ranks, {"--epochs", epochs}, 280s);
    EXPECT_EQ(end.status, 0) << end.output;
    std::smatch match;
    ASSERT_TRUE(std::regex_search(end.output, match, std::regex("RIGHT: test accuracy ([0-9.]+) %"))) << end.output;
    EXPECT_GE(std::stod(match[1]), percent);
    std::cout << ranks << " ranks: " << match[0] << "\n";
  }
}

}  // namespace fashion_mnist_test
