// train_ddp and horovod_style as a user runs them.
#include "data/csv.hpp"
#include "data/synthetic.hpp"
#include "ddp/sampler.hpp"
#include "fashion_mnist_ways.hpp"
#include "model/perceptron.hpp"

#include <cmath>
#include <fstream>

namespace train_programs_test {

using Options = std::vector<std::string>;

// ddp_equality's tests do it by each library.
TEST(TrainPrograms, Learn) {
  const Ranks::End ddp = quickest_way().run(PATH_train_ddp, 7, {});
  EXPECT_EQ(ddp.status, 0) << ddp.output;
  EXPECT_SAYS(ddp.output, "615 rows to learn from, 153 held out, 8 features; ranks: 7\n");
  EXPECT_SAYS(ddp.output, "epoch 100: loss 0.");
  EXPECT_SAYS(ddp.output, "RIGHT: accuracy ");
  EXPECT_SAYS(ddp.output, "at least 75.0 % wanted; the ranks' parameters are identical\n");
}

// The loss of each of 5 epochs, in one process and without the reducer.
std::vector<double> losses_of_one_process(std::size_t batch_size) {
  constexpr std::uint64_t seed = 1;  // the default of --seed
  data::Table table = data::synthetic_table(768, 8, seed);
  const std::size_t trained = table.size() - table.size() / 5;
  data::standardise(table, trained);
  ddp::DistributedSampler sampler(trained, batch_size, 0, 1, seed);
  model::Perceptron<float> model({{8, 12, 8, 1}, model::Loss::binary_cross_entropy}, table.size());
  model::Adam<float> optimizer(model.parameters());
  model.initialize(seed);
  const std::span<float> gradients = model.gradient_storage();
  data::Batch<float> batch;
  std::vector<double> losses;
  for (std::uint32_t epoch = 1; epoch <= 5; ++epoch) {
    sampler.set_epoch(epoch);
    double loss = 0;
    for (std::size_t step = 0; step < sampler.steps(); ++step) {
      data::gather(table, sampler.local_batch(step), batch);
      model.load(batch, {}, 1e-3);
      model.forward();
      loss += model.take_totals().loss;
      model.backward([](std::size_t) {});
      for (float& gradient : gradients) gradient *= 1 / static_cast<float>(batch.size());
      model.update(optimizer);
    }
    losses.push_back(loss / static_cast<double>(trained));
  }
  return losses;
}

// With the same global batch, 42 rows, P ranks learn what one process learns. One rank does the same operations.
// Several add the same floats in another order, which moves the losses of 5 epochs by 1e-9 (measured). A row left out
// in one step moves them by 1e-3, and a missing average, which Adam nearly hides, by 1e-4.
TEST(TrainPrograms, SeveralRanksLearnWhatOneProcessLearns) {
  const std::vector<double> alone = losses_of_one_process(42);
  EXPECT_LT(alone.back(), alone.front());
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<double> together;
    const auto lines = results(quickest_way(), PATH_train_ddp, ranks,
                               {"--batch-size", std::to_string(42 / ranks), "--epochs", "5", "--min-accuracy", "0"})
                           .lines;
    for (const auto& line : lines)
      if (line.contains("loss")) together.push_back(line.at("loss"));
    ASSERT_EQ(together.size(), alone.size());
    for (std::size_t epoch = 0; epoch < alone.size(); ++epoch) {
      if (ranks == 1) {
        EXPECT_EQ(together[epoch], alone[epoch]);
      }
      EXPECT_NEAR(together[epoch], alone[epoch], 1e-6) << ranks << " ranks, epoch " << epoch + 1;
    }
  }
}

TEST(TrainPrograms, HorovodStyleTrainsAsOneProcess) {
  for (const int ranks : {1, 2, 3, 7}) {
    const Ranks::End end = quickest_way().run(PATH_horovod_style, ranks, {});
    EXPECT_EQ(end.status, 0) << end.output;
    const std::string last = std::to_string(ranks - 1), all = std::to_string(ranks);
    EXPECT_SAYS(end.output, "rank " + last + " of " + all + ", local rank ");  // Open MPI 5 numbers them by core
    EXPECT_SAYS(end.output, "local model: ");
    std::size_t at = 0;
    for (const std::string part : {"local model: ", "loss: ", "optimizer: ", "parameters: ", "step 1: loss 0.",
                                   "step 20: loss 0.", "step 100: loss 0.", "done: RIGHT"}) {
      const std::size_t next = end.output.find(part, at);
      ASSERT_NE(next, std::string::npos) << part << "\n" << end.output;
      at = next;
    }
  }
}

TEST(TrainPrograms, HorovodStyleCompresses) {
  for (const std::string compression : {"float16", "bfloat16"}) {
    const nlohmann::json result =
        results(quickest_way(), PATH_horovod_style, 3, {"--compression", compression}).lines.back();
    EXPECT_LT(result.at("loss_after"), result.at("loss_before"));
    EXPECT_LE(result.at("difference"), result.at("bound"));
    EXPECT_GT(result.at("difference"), 1e-9) << "nothing was compressed";
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
std::string some_rows(int count, const std::string& separator) {
  std::string text = "x1" + separator + "x2" + separator + "x3" + separator + "y\n";
  for (int i = 0; i < count; ++i) {
    const int x1 = i * 7 % 21, x2 = i * 11 % 23;
    for (const int number : {x1, x2, 5}) text += std::to_string(number) + separator;
    text += std::to_string(x1 + x2 > 20) + "\n";
  }
  return text;
}

TEST_F(TrainFiles, ReadAnyTable) {
  const std::string file = write("rows.csv", some_rows(500, ","));
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

TEST_F(TrainFiles, NameWhatIsWrongWithATable) {
  const auto expect = [&](const std::string& path, int status, const std::string& says) {
    const Ranks::End end = train(path, status == 1 ? 3 : 1);
    EXPECT_EQ(end.status, status) << end.output;
    EXPECT_EQ(occurrences(end.output, says), 1u) << says << "\n" << end.output;
  };
  const std::string nowhere = folder_ / "nowhere.csv";
  expect(nowhere, 2, "cannot read " + nowhere + ": No such file or directory\n");
  const std::string text = write("text.csv", "a,b\n1,0\nx,1\n");
  expect(text, 1, text + ": line 3, column 1: 'x' is not a finite number\n");
  const std::string few = write("few.csv", some_rows(9, ","));
  expect(few, 1, few + ": 9 rows; at least 10 are needed\n");
  const std::string three = write("three.csv", "length,kind\n1,0\n2,1\n3,2\n");
  expect(three, 1, three + ": kind is 2.000000 in row 3 of numbers; the last column must be 0 or 1\n");
}

TEST(BadCommandLines, AreRefused) {
  expect_refused({{{PATH_fashion_mnist, "--epoch", "3"}, "unrecognised option '--epoch'"},
                  {{PATH_fashion_mnist, "--dropout", "1"}, "--dropout must be from 0"},
                  {{PATH_fashion_mnist, "--learning-rate", "-2"}, "--learning-rate must be from 0"},
                  {{PATH_fashion_mnist, "--optimizer", "sgdm"}, "--optimizer must be sgd or adam, not 'sgdm'"},
                  {{PATH_fashion_mnist, "--precision", "half"}, "--precision must be float or double, not 'half'"},
                  {{PATH_fashion_mnist, "--nan", "-2"}, "--nan must be from 0 to 0, not -2"},
                  {{PATH_fashion_mnist, "--checkpoint-every", "5"}, "--checkpoint-every needs --checkpoint DIR"},
                  {{PATH_fashion_mnist, "--backend", "horse"}, "horse"},
                  {{PATH_random_mlp, "--loss", "hinge"}, "--loss must be mean-square or cross-entropy, not 'hinge'"},
                  {{PATH_random_mlp, "--bucket-bytes", "many"}, "--bucket-bytes"},
                  {{PATH_random_mlp, "--hidden-layers", "1"}, "--hidden-layers must be from 2 to"},
                  {{PATH_random_mlp, "--backend", "horse"}, "horse"},
                  {{PATH_train_ddp, "--epochs", "0"}, "--epochs must be from 1 to"},
                  {{PATH_train_ddp, "file.csv"}, "only options are expected"},
                  {{PATH_horovod_style, "--compression", "zip"}, "--compression must be none, float16 or bfloat16"}});
}

}  // namespace train_programs_test
