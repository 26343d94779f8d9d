// train_ddp and horovod_style as a user runs them.
#include "fashion_mnist_ways.hpp"

namespace train_programs_test {

// With the same global batch, 42 rows. The ranks add the same floats in another order, which moves the losses of 5
// epochs by 1e-9 (measured). A row left out in one step moves them by 1e-3, and a missing average, which Adam nearly
// hides, by 1e-4.
TEST(TrainPrograms, SeveralRanksLearnWhatOneLearns) {
  std::vector<double> alone;
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<double> losses;
    for (const auto& line :
         results(quickest_way(), PATH_train_ddp, ranks,
                 {"--batch-size", std::to_string(42 / ranks), "--epochs", "5", "--min-accuracy", "0"})
             .lines)
      if (line.contains("loss")) losses.push_back(line.at("loss"));
    if (ranks == 1) alone = losses;
    ASSERT_EQ(losses.size(), 5u);
    for (std::size_t epoch = 0; epoch < 5; ++epoch)
      EXPECT_NEAR(losses[epoch], alone[epoch], 1e-6) << ranks << " ranks, epoch " << epoch + 1;
  }
  EXPECT_LT(alone.back(), alone.front());
}

// The program itself compares, with a bound that compression widens.
TEST(TrainPrograms, HorovodStyleTrainsAsOneProcess) {
  for (const auto& [ranks, compression] : {std::pair{1, "none"}, {7, "none"}, {3, "float16"}, {3, "bfloat16"}}) {
    const auto [output, lines] = results(quickest_way(), PATH_horovod_style, ranks, {"--compression", compression});
    const std::string last = std::to_string(ranks - 1), all = std::to_string(ranks);
    EXPECT_SAYS(output, "rank " + last + " of " + all + ", local rank ");  // Open MPI 5 numbers them by core
    EXPECT_SAYS(output, "step 100: loss 0.");
    EXPECT_SAYS(output, "done: RIGHT");
    EXPECT_EQ(lines.back().at("difference") > 1e-9, ranks == 3) << "whether it was compressed";
  }
}

TEST(TrainPrograms, TrainDdpMustBeBetterThanWanted) {
  const Ranks::End end =
      Ranks(quickest_way().starter, 3, {PATH_train_ddp, "--epochs", "1", "--min-accuracy", "95"}).wait();
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "615 rows to learn from, 153 held out, 8 features");
  EXPECT_SAYS(end.output, "% on 153 held-out rows, at least 95.0 % wanted; the ranks' parameters are identical");
}

// Two epochs are 40 steps for 1,230 rows, and the 1,601st row comes in the 12th step of 32 rows after them. (A
// sanitizer would have to be loaded first.)
TEST(TrainPrograms, NameTheStepWhoseLossIsNotFinite) {
  const std::map<std::string, std::string> environment{{"LD_PRELOAD", PATH_nan_log1pf},
                                                       {"ASAN_OPTIONS", "verify_asan_link_order=0"}};
  const Result result = run({PATH_train_ddp}, environment);
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.err, "the loss is nan in step 52; a smaller --learning-rate may help");
  const Result after = run({PATH_random_mlp, "--hidden-layers", "3", "--hidden-units", "64", "--batch-size", "16",
                            "--steps", "1", "--epochs", "1", "--learning-rate", "1e6"});
  EXPECT_EQ(after.status, 1) << after.all();
  EXPECT_SAYS(after.err, " is not finite after step 1; a smaller --learning-rate may help");
}

TEST(BadCommandLines, AreRefused) {
  expect_refused({{{PATH_fashion_mnist, "--dropout", "1"}, "--dropout must be from 0"},
                  {{PATH_fashion_mnist, "--optimizer", "sgdm"}, "--optimizer must be sgd or adam, not 'sgdm'"},
                  {{PATH_fashion_mnist, "--nan", "-2"}, "--nan must be from 0 to 0, not -2"},
                  {{PATH_fashion_mnist, "--checkpoint-every", "5"}, "--checkpoint-every needs --checkpoint DIR"},
                  {{PATH_horovod_style, "--compression", "zip"}, "--compression must be none, float16 or bfloat16"}});
}

}  // namespace train_programs_test
