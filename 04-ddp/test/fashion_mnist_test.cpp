// The programs as a user runs them, on small data sets of their own.
#include "fashion_mnist_ways.hpp"
#include "idx_files.hpp"

#include <testing/json_lines.hpp>

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <regex>

namespace fashion_mnist_test {

class SmallDataSet : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    small_ = std::make_unique<TemporaryFolder>();
    write_data_set(small_->path(), 301, 101, true);
  }
  static void TearDownTestSuite() { small_.reset(); }

  // 10 epochs of 11 steps; the last step has one image, and all ranks but one have none.
  using Settings = std::map<std::string, std::string>;
  static std::vector<std::string> learn(Settings settings = {}) {
    settings.insert({{"--data", small_->path().string()},
                     {"--epochs", "10"},
                     {"--batch-size", "30"},
                     {"--min-accuracy", "90"},
                     {"--learning-rate", "0.02"}});
    std::vector<std::string> options;
    for (const auto& [name, value] : settings) {
      options.push_back(name);
      if (!value.empty()) options.push_back(value);
    }
    return options;
  }

  static inline std::unique_ptr<TemporaryFolder> small_;
};

class FashionMnist : public SmallDataSet, public ::testing::WithParamInterface<Way> {
 protected:
  Ranks::End run(int ranks, const std::vector<std::string>& options) {
    return GetParam().run(PATH_fashion_mnist, ranks, options);
  }
};

TEST_P(FashionMnist, LearnsOnAnyNumberOfRanks) {
  for (const int ranks : counts_for(GetParam(), {1, 7, 3})) {
    const TemporaryFolder folder;
    const std::string file = folder / "results.json";
    const Ranks::End end = run(ranks, learn({{"--json", file}}));
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_SAYS(end.output, "301 images to learn from, 101 to test with; 669706 parameters in 2 buckets; " +
                                std::to_string(ranks) + (ranks == 1 ? " rank, " : " ranks, "));
    EXPECT_SAYS(end.output, "epoch 10: loss ");
    EXPECT_SAYS(end.output, " on every rank\n");
    EXPECT_SAYS(end.output, "RIGHT: test accuracy ");

    const std::vector<nlohmann::json> lines = multinode::testing::json_lines(file);
    ASSERT_EQ(lines.size(), 12u);
    EXPECT_EQ(lines[0].at("fingerprint").at("world_size"), ranks);
    EXPECT_EQ(lines[10].at("epoch"), 10);
    EXPECT_EQ(lines[10].at("steps"), 110);
    EXPECT_GT(lines[10].at("samples_per_second"), 0);
    EXPECT_EQ(lines[11].at("right"), true);
    EXPECT_EQ(lines[11].at("identical"), true);
    EXPECT_GE(lines[11].at("accuracy"), 90);
  }
}

TEST_P(FashionMnist, StepsAreShownAndLimited) {
  const Ranks::End end = run(2, learn({{"--steps", "13"}, {"--log-every", "1"}, {"--min-accuracy", "0"}}));
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS(end.output, "epoch 1 step 11 of 11: loss ");
  EXPECT_SAYS(end.output, "epoch 2 step 2 of 11: loss ");
  EXPECT_EQ(occurrences(end.output, "epoch 2 step"), 2u) << end.output;
  EXPECT_EQ(occurrences(end.output, "\r"), 0u) << "a bar where there is no terminal";
}

TEST_P(FashionMnist, StopsWhenItGetsNoBetterAndKeepsTheBest) {
  const TemporaryFolder folder;
  const Settings settings{{"--optimizer", "adam"}, {"--learning-rate", "0.001"}, {"--epochs", "50"},
                          {"--patience", "2"},     {"--min-accuracy", "95"},     {"--checkpoint", folder.path()}};
  const Ranks::End end = run(2, learn(settings)), again = run(2, learn(settings));
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS(end.output, "stopped: the test accuracy has not been better for 2 epochs\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "best.checkpoint"));
  EXPECT_SAYS(again.output, "stopped: the test accuracy has not been better for 2 epochs\n");
  EXPECT_EQ(occurrences(again.output, ": loss"), 0u) << again.output;
}

TEST_P(FashionMnist, ARankWithOtherParametersIsFound) {
  const Ranks::End end = run(3, learn({{"--corrupt", "1"}, {"--epochs", "1"}}));
  EXPECT_EQ(end.status, 1);
  EXPECT_SAYS(end.output, " on rank 1\n");
  EXPECT_SAYS(end.output, "the ranks' parameters differ");
}

TEST_P(FashionMnist, ALossThatIsNoNumberStopsTheRunAndNamesTheRank) {
  const Ranks::End end = run(3, learn({{"--no-average", ""}, {"--learning-rate", "1e6"}}));
  EXPECT_EQ(end.status, 1);
  EXPECT_TRUE(std::regex_search(
      end.output, std::regex("rank [012] \\(host [^)]*\\): the loss is -?(nan|inf) in step [0-9]+; a smaller")))
      << end.output;
  EXPECT_EQ(occurrences(end.output, "the loss is"), 1u) << "one line: " << end.output;
}

// The loss is finite, the gradient is not: found before it is sent, or every rank's would be as bad.
TEST_P(FashionMnist, AGradientThatIsNoNumberStopsTheRunAndNamesRankAndParameter) {
  for (const std::string precision : {"float", "double"}) {
    if (precision == "double" && GetParam().starter != quickest_way().starter) continue;
    const auto start = std::chrono::steady_clock::now();
    const Ranks::End end = run(3, learn({{"--nan", "1"}, {"--log-every", "1"}, {"--precision", precision}}));
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

// Found by all ranks before they meet, and after that.
TEST_P(FashionMnist, BadCommandLinesAreRefusedOnce) {
  for (const std::string option : {"--epochs", "--corrupt"}) {
    const Ranks::End end = run(2, {option, "-2"});
    EXPECT_EQ(end.status, 2) << end.output;
    EXPECT_EQ(occurrences(end.output, option + " must be from "), 1u) << end.output;
  }
}

TEST_P(FashionMnist, DamagedDataAreNamedOnce) {
  const TemporaryFolder folder;
  write_data_set(folder.path(), 30, 30, true);
  const auto images = folder / "train-images-idx3-ubyte.gz";
  std::filesystem::resize_file(images, std::filesystem::file_size(images) / 2);
  const Ranks::End end = run(3, {"--data", folder.path()});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_EQ(occurrences(end.output, images.string() + ": the gzip data is cut off; get the file again\n"), 1u)
      << end.output;
}

// A killed rank ends the others, and they name it; in small batches, so that ranks without a sample are among them.
TEST_P(FashionMnist, AKilledRankIsNamedAndEndsTheOthers) {
  std::mt19937 random(20261121);
  const char* times = std::getenv("MULTINODE_KILLS");  // a campaign sets 20
  std::string record;
  for (int i = 0; i < (times ? std::atoi(times) : 1); ++i)
    EXPECT_EQ(kill_one(GetParam().starter, 4,
                       {PATH_fashion_mnist, "--data", small_->path().string(), "--epochs", "100000", "--batch-size",
                        "3", "--log-every", "1"},
                       "epoch 1 step (\\d+) of", 5, 90, random, &record),
              "");
  std::cout << record;
}

INSTANTIATE_TEST_SUITE_P(By, FashionMnist, ::testing::ValuesIn(ways()),
                         [](const auto& info) { return info.param.name(); });

// What does not depend on how the ranks were started.
class FashionMnistOnce : public SmallDataSet {
 protected:
  static Result run(std::vector<std::string> options) {
    options.insert(options.begin(), PATH_fashion_mnist);
    return multinode::testing::run(options);
  }
};

TEST_F(FashionMnistOnce, BadCommandLinesAreRefused) {
  const struct {
    std::vector<std::string> options;
    std::string says;
  } cases[] = {{{"--epoch", "3"}, "unrecognised option '--epoch'"},
               {{"--epochs", "0"}, "--epochs must be from 1"},
               {{"--dropout", "1"}, "--dropout must be from 0"},
               {{"--learning-rate", "-2"}, "--learning-rate must be from 0"},
               {{"--optimizer", "sgdm"}, "--optimizer must be sgd or adam, not 'sgdm'"},
               {{"--precision", "half"}, "--precision must be float, double, tf32 or bfloat16, not 'half'"},
               {{"--corrupt", "1"}, "--corrupt must be from 0 to 0, not 1"},
               {{"--nan", "-2"}, "--nan must be from 0 to 0, not -2"},
               {{"--checkpoint-every", "5"}, "--checkpoint-every needs --checkpoint DIR"},
               {{"--backend", "horse"}, "horse"},
               {{"twice"}, "only options are expected"}};
  for (const auto& c : cases) {
    const Result result = run(c.options);
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_EQ(occurrences(result.err, c.says), 1u) << c.says << "\n" << result.all();
  }
}

TEST_F(FashionMnistOnce, TooLowAnAccuracyFails) {
  const Result result = run(learn({{"--learning-rate", "0"}}));
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.out, "%, at least 90 % wanted");
  EXPECT_SAYS(result.out, "WRONG: test accuracy ");
}

TEST_F(FashionMnistOnce, NcclWithoutAGpuSays77) {
  const Result result = run(learn({{"--backend", "nccl"}}));
  if (result.status == 0) GTEST_SKIP() << "there is a GPU here";
  if (result.status == 2 && result.err.find("nccl") != std::string::npos) GTEST_SKIP() << "a build without NCCL";
  EXPECT_EQ(result.status, 77) << result.all();
}

TEST_F(FashionMnistOnce, GpuOptionsNeedAGpu) {
  for (const Settings& settings :
       {Settings{{"--precision", "bfloat16"}}, Settings{{"--precision", "tf32"}}, Settings{{"--cuda-graph", ""}}}) {
    const Result result = run(learn(settings));
    if (result.status == 0) GTEST_SKIP() << "there are GPUs here";
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_SAYS(result.err,
                "--precision bfloat16, --precision tf32 and --cuda-graph: only on GPUs, with --backend nccl");
  }
}

// Over each library. mnrun's ranks use the same one as bare processes.
class AStoppedRank : public SmallDataSet, public ::testing::WithParamInterface<Way> {};

TEST_P(AStoppedRank, IsNamed) {
  if (GetParam().starter == Starter::mpirun && !is_open_mpi())
    GTEST_SKIP() << "MPICH's mpirun waits for the frozen rank";
  Ranks ranks(GetParam().starter, 3,
              {PATH_fashion_mnist, "--data", small_->path().string(), "--epochs", "100000", "--timeout", "5"});
  ASSERT_TRUE(ranks.wait_for("epoch (3): loss"));
  ranks.signal(1, SIGSTOP);
  const Ranks::End end = ranks.wait();
  EXPECT_TRUE(end.survivors_ended) << end.output.substr(end.output.size() - 2000);
  EXPECT_SAYS(end.output, "; rank 1 (host ");
  EXPECT_SAYS(end.output, "is frozen");
}

INSTANTIATE_TEST_SUITE_P(By, AStoppedRank, ::testing::ValuesIn(one_way_a_library()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace fashion_mnist_test
