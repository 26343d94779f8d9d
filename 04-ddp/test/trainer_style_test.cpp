// trainer_style as a user runs it.
#include "fashion_mnist_ways.hpp"
#include "idx_files.hpp"

#include <testing/json_lines.hpp>

#include <nlohmann/json.hpp>

#include <memory>
#include <regex>

namespace trainer_style_test {

class SmallDataSet : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    small_ = std::make_unique<TemporaryFolder>();
    write_data_set(small_->path(), 301, 101, true);
  }
  static void TearDownTestSuite() { small_.reset(); }
  static inline std::unique_ptr<TemporaryFolder> small_;
};

class TrainerStyle : public SmallDataSet, public ::testing::WithParamInterface<Way> {
 protected:
  Ranks::End run(int ranks, std::vector<std::string> more) const {
    std::vector<std::string> options{"--data", small_->path().string(), "--batch-size", "30", "--log-every", "5"};
    options.insert(options.end(), more.begin(), more.end());
    return GetParam().run(PATH_trainer_style, ranks, options);
  }
  static std::string parameters(const std::string& output) {
    std::smatch match;
    return std::regex_search(output, match, std::regex("parameters: ([0-9a-f]{16}) on every rank"))
               ? match[1].str()
               : "none in: " + output;
  }
};

TEST_P(TrainerStyle, LearnsUntilItGetsNoBetter) {
  for (const int ranks : counts_for(GetParam(), {1, 2, 3})) {
    const Ranks::End end = run(ranks, {"--epochs", "50", "--patience", "2", "--min-accuracy", "95"});
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_SAYS(end.output, "669706 parameters in 2 buckets; " + std::to_string(ranks) + " rank");
    EXPECT_SAYS(end.output, "epoch 1 step 5 of 11: train_loss_step ");
    EXPECT_SAYS(end.output, "stopped: val_accuracy has not been better for 2 epochs\n");
    EXPECT_SAYS(end.output, " on every rank\n");
    EXPECT_SAYS(end.output, "RIGHT: test accuracy ");
  }
}

TEST_P(TrainerStyle, GoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  const std::vector<std::string> whole{"--epochs", "2", "--json", folder / "whole", "--min-accuracy", "0"};
  std::vector<std::string> part{
      "--epochs", "2", "--json", folder / "parts", "--checkpoint", folder / "checkpoints", "--min-accuracy", "0"};
  const Ranks::End undisturbed = run(3, whole);
  part.insert(part.end(), {"--steps", "15"});  // a step that is logged
  EXPECT_EQ(run(3, part).status, 0);
  part.resize(part.size() - 2);
  const Ranks::End rest = run(3, part);
  EXPECT_SAYS(rest.output, ".checkpoint, after step 15\n");
  EXPECT_EQ(parameters(rest.output), parameters(undisturbed.output));
  // Both files say the same: the parts' one has two fingerprints, and an answer after each part.
  const auto lines = [](const std::filesystem::path& file) {
    std::vector<nlohmann::json> all;
    for (const nlohmann::json& line : multinode::testing::json_lines(file))
      if (line.contains("step")) all.push_back(line);
    return all;
  };
  EXPECT_EQ(lines(folder / "whole").size(), 8u);
  EXPECT_EQ(lines(folder / "parts"), lines(folder / "whole"));
}

TEST_F(SmallDataSet, TooLowAnAccuracyFails) {
  const Result result = run({PATH_trainer_style, "--data", small_->path().string(), "--learning-rate", "0", "--epochs",
                             "1", "--min-accuracy", "90"});
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.out, "WRONG: test accuracy ");
  EXPECT_SAYS(result.out, " %, at least 90 % wanted");
}

TEST_F(SmallDataSet, BadCommandLinesAreRefused) {
  const struct {
    std::vector<std::string> options;
    std::string says;
  } cases[] = {{{"--epochs", "0"}, "--epochs must be from 1"},
               {{"--batch-size", "-1"}, "--batch-size must be from 1 to 1000000, not -1"},
               {{"--patience", "0"}, "--patience must be from 1"},
               {{"--checkpoint-every", "-1"}, "--checkpoint-every must be from 0"},
               {{"--checkpoint-every", "5"}, "--checkpoint-every needs --checkpoint DIR"},
               {{"--steps", "-1"}, "--steps must be from 0"},
               {{"--log-every", "0"}, "--log-every must be from 1"},
               {{"--min-accuracy", "101"}, "--min-accuracy must be from 0"},
               {{"--learning-rate", "-1"}, "--learning-rate must be from 0"},
               {{"--checkpoint", "/dev/null"}, "/dev/null"}};
  for (const auto& c : cases) {
    std::vector<std::string> command{PATH_trainer_style, "--data", small_->path().string()};
    command.insert(command.end(), c.options.begin(), c.options.end());
    const Result result = run(command);
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_EQ(occurrences(result.err, c.says), 1u) << c.says << "\n" << result.all();
  }
}

INSTANTIATE_TEST_SUITE_P(By, TrainerStyle, ::testing::ValuesIn(one_way_a_library()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace trainer_style_test
