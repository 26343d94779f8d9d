// train_ddp and horovod_style as a user runs them.
#include "fashion_mnist_ways.hpp"

#include <fstream>

namespace train_programs_test {

using Options = std::vector<std::string>;

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

class TrainFiles : public ::testing::Test {
 protected:
  static Ranks::End train(const std::string& file, int ranks, const Options& more = {}) {
    Options options{PATH_train_ddp, "--data", file};
    options.insert(options.end(), more.begin(), more.end());
    return Ranks(quickest_way().starter, ranks, options).wait();
  }
  std::string write(const std::string& name, const std::string& text) {
    const auto path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }

  const TemporaryFolder folder_;
};

// y is 1 where x1 + x2 > 20; x3 tells nothing.
std::string some_rows(int count) {
  std::string text = "x1,x2,x3,y\n";
  for (int i = 0; i < count; ++i) {
    const int x1 = i * 7 % 21, x2 = i * 11 % 23;
    for (const int number : {x1, x2, 5}) text += std::to_string(number) + ",";
    text += std::to_string(x1 + x2 > 20) + "\n";
  }
  return text;
}

TEST_F(TrainFiles, ReadAnyTable) {
  const std::string file = write("rows.csv", some_rows(500));
  const Ranks::End end = train(file, 3, {"--learning-rate", "0.01", "--min-accuracy", "95"});
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS(end.output, "400 rows to learn from, 100 held out, 3 features; x3 has the same value in every row");
}

// Of the 20 rows held out 12 are 0: the same answer for all rows reaches 60 %.
TEST_F(TrainFiles, MustBeBetterThanAGuess) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i % 7) + "," + (i < 80 || i % 5 < 2 ? "1" : "0") + "\n";
  const Ranks::End end = train(write("useless.csv", text), 1);
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "WRONG: accuracy 40.0 % on 20 held-out rows, at least 60.0 % wanted");
}

// csv_test.cpp has what is wrong with other tables.
TEST_F(TrainFiles, NameTheTableThatHasNoAnswers) {
  const auto expect = [&](const std::string& path, int status, const std::string& says) {
    const Ranks::End end = train(path, status == 1 ? 3 : 1);
    EXPECT_EQ(end.status, status) << end.output;
    EXPECT_EQ(occurrences(end.output, says), 1u) << says << "\n" << end.output;
  };
  const std::string few = write("few.csv", some_rows(9));
  expect(few, 1, few + ": 9 rows; at least 10 are needed\n");
  const std::string three = write("three.csv", "length,kind\n1,0\n2,1\n3,2\n");
  expect(three, 1, three + ": kind is 2.000000 in row 3 of numbers; the last column must be 0 or 1\n");
}

TEST(BadCommandLines, AreRefused) {
  expect_refused({{{PATH_fashion_mnist, "--dropout", "1"}, "--dropout must be from 0"},
                  {{PATH_fashion_mnist, "--optimizer", "sgdm"}, "--optimizer must be sgd or adam, not 'sgdm'"},
                  {{PATH_fashion_mnist, "--nan", "-2"}, "--nan must be from 0 to 0, not -2"},
                  {{PATH_fashion_mnist, "--checkpoint-every", "5"}, "--checkpoint-every needs --checkpoint DIR"},
                  {{PATH_horovod_style, "--compression", "zip"}, "--compression must be none, float16 or bfloat16"}});
}

}  // namespace train_programs_test
