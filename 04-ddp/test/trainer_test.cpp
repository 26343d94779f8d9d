// The Trainer on one rank in this process. fashion_mnist's tests run them on several.
#include "fashion_mnist/trainer.hpp"
#include "idx_files.hpp"

#include <multinode/base/files.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <memory>

namespace trainer_test {

namespace fs = std::filesystem;
using trainer::Trainer;

// One number that every step moves. "val_loss" after each epoch is planted.
class Number : public trainer::Module {
 public:
  explicit Number(std::vector<double> planted) : planted_(std::move(planted)) {}
  const std::vector<ddp::NamedBlock>& state() override { return blocks_; }
  ddp::Restored restore(const std::vector<fs::path>& newest_first, const nlohmann::json& hyperparameters) override;
  std::size_t steps() const override { return 3; }
  void begin_epoch(std::size_t epoch, std::size_t first) override {
    epoch_ = epoch;
    step_ = (epoch - 1) * steps() + first;
    calls += "epoch " + std::to_string(epoch) + " from " + std::to_string(first) + "\n";
  }
  void training_step(std::size_t step) override {
    calls += "step " + std::to_string(++step_) + "\n";
    number[0] = number[0] * 0.5 + static_cast<double>(10 * epoch_ + step);
    losses_ = {losses_.loss + number[0] * static_cast<double>(step + 1),
               losses_.samples + static_cast<double>(step + 1)};
  }
  trainer::Sums take_losses() override { return std::exchange(losses_, {}); }
  trainer::Metrics validate() override { return {{"val_loss", planted_.at(epoch_ - 1)}}; }

  std::vector<double> number{0};
  std::string calls;

 private:
  std::vector<ddp::NamedBlock> blocks_{{"number", {1}, std::span(number)}};
  std::vector<double> planted_;
  std::size_t epoch_ = 0, step_ = 0;
  trainer::Sums losses_;
};

struct Training : ::testing::Test {
  static void SetUpTestSuite() {
    world_ = std::make_unique<multinode::World>("trainer_test", multinode::Launch{}, multinode::World::Options{});
  }
  static void TearDownTestSuite() { world_.reset(); }
  // Writes down what it logs, between the steps of `number`.
  static Trainer make(Number& number, trainer::TrainerOptions options) {
    const auto write = [&number](const std::string& what, const std::string& metric) {
      return [&number, what, metric](const Trainer& t) {
        number.calls += what + " " + std::to_string(t.metrics().at(metric)) + "\n";
      };
    };
    options.on_log = write("log", "train_loss_step");
    options.on_validation_end = write("mean", "train_loss_epoch");
    return Trainer(*world_, number, std::move(options));
  }

  static inline std::unique_ptr<multinode::World> world_;
};

ddp::Restored Number::restore(const std::vector<fs::path>& newest_first, const nlohmann::json& hyperparameters) {
  return ddp::load_checkpoint(*Training::world_, newest_first, blocks_, hyperparameters);
}

TEST_F(Training, TheHashOfParametersIsTheirFnv1a) {
  std::vector<float> one{1};
  const ddp::NamedBlock block{"one", {1}, std::span(one)};
  EXPECT_EQ(ddp::hash_of({&block, 1}), 0x4b72477f9c5c2f98u);  // of the bytes 00 00 80 3f, by another program
}

TEST_F(Training, ParametersThatAreNotFiniteAtTheEndAreAnError) {
  std::vector<double> numbers{1, 2};
  const ddp::NamedBlock block{"numbers", {2}, std::span(numbers)};
  EXPECT_EQ(ddp::hashes_of_ranks(*world_, {&block, 1}).size(), 1u);
  numbers[1] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(multinode::testing::error_text<std::runtime_error>([&] {
              ddp::hashes_of_ranks(*world_, {&block, 1});
            }),
            "element 1 of 'numbers' after the last step is infinite");
}

TEST_F(Training, HooksComeInOrderAndMetricsAreMeans) {
  Number number({1, 2});
  make(number, {.max_epochs = 2, .max_steps = 5, .log_every = 2}).fit();
  // 10, 16, 20, 30, 36, with 1, 2, 3, 1, 2 samples
  EXPECT_EQ(number.calls,
            "epoch 1 from 0\nstep 1\nstep 2\nlog 14.000000\nstep 3\nlog 20.000000\nmean 17.000000\n"
            "epoch 2 from 0\nstep 4\nstep 5\nlog 34.000000\nmean 34.000000\n");
}

double smallest_loss(const trainer::Metrics& metrics) { return -metrics.at("val_loss"); }

TEST_F(Training, EarlyStoppingStopsWhenNothingGetsBetter) {
  const auto expect = [](const std::vector<double>& values, double sign, std::size_t patience, std::size_t epochs) {
    Number number(values);
    Trainer t = make(
        number, {.max_epochs = values.size(), .patience = patience, .score = [sign](const trainer::Metrics& metrics) {
                   return sign * metrics.at("val_loss");
                 }});
    t.fit();
    EXPECT_EQ(t.epochs(), epochs);
    EXPECT_EQ(t.stopped(), epochs < values.size());
  };
  expect({5, 4, 4, 3.9, 4, 3.9, 3.9, 1}, -1, 3, 7);
  expect({1, 2, 3, 2, 3, 9}, 1, 2, 5);
  expect({3, std::nan(""), HUGE_VAL, 1}, 1, 2, 3);
  expect({9, 8, 7, 6}, -1, 1, 4);
}

TEST_F(Training, TheBestCheckpointIsTheBestAndTheNewestAreKept) {
  const TemporaryFolder folder;
  Number number({std::nan(""), 2, std::nan(""), 1.5, 1.5, 2}), read({});
  make(number, {.max_epochs = 6, .patience = 100, .score = smallest_loss, .checkpoints = folder / "new"}).fit();
  EXPECT_EQ(multinode::names_in(folder / "new"),
            (std::vector<std::string>{"best.checkpoint", "lock", "step-0000000015.checkpoint",
                                      "step-0000000018.checkpoint"}));
  const auto blocks = read.state();
  EXPECT_EQ(ddp::read_checkpoint(folder / "new/best.checkpoint", blocks).at("trainer").at("epochs"), 4);
  EXPECT_NE(read.number, number.number);
  EXPECT_EQ(ddp::read_checkpoint(folder / "new/step-0000000018.checkpoint", blocks).at("trainer").at("epochs"), 6);
  EXPECT_EQ(read.number, number.number);
}

// Breaks in an epoch, at its end, at a step with a checkpoint, while the patience runs, and several.
TEST_F(Training, ABreakChangesNotABit) {
  std::string calls;
  const auto train = [&calls](const fs::path& folder, std::size_t max_steps) {
    Number number({5, 4, 4.5, 3, 3.5, 3.25, 3, 2});  // stops after epoch 7, where patience is 3
    Trainer t = make(number, {.max_epochs = 8,
                              .max_steps = max_steps,
                              .log_every = 2,
                              .hyperparameters = {{"--seed", 1}},
                              .patience = 3,
                              .score = smallest_loss,
                              .checkpoints = folder,
                              .checkpoint_every = 2});
    t.fit();
    calls += number.calls;
    return std::tuple(number.number[0], t.step(), t.stopped());
  };
  const TemporaryFolder folder;
  const auto whole = train(folder / "whole", 100);
  const std::string whole_calls = std::exchange(calls, "");
  EXPECT_EQ(std::get<1>(whole), 21u);
  for (const std::vector<std::size_t>& breaks :
       std::vector<std::vector<std::size_t>>{{2}, {3}, {4}, {16}, {18}, {20}, {21}, {2, 7, 15, 16, 20}}) {
    calls.clear();
    std::string name = "broken";
    for (const std::size_t step : breaks) {
      name += "-" + std::to_string(step);
      train(folder / name, step);
    }
    EXPECT_EQ(train(folder / name, 100), whole) << name;
    // A break within an epoch logs one more line; a break at the end of an epoch does not.
    if (breaks.size() == 1 && breaks[0] % 3 == 0) {
      EXPECT_EQ(calls, whole_calls) << name;
    }
  }
}

}  // namespace trainer_test
