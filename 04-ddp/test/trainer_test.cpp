// The Trainer and its callbacks, on one rank in this process. fashion_mnist's tests run them on several.
#include "trainer.hpp"
#include "idx_files.hpp"

#include <multinode/check.hpp>
#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <set>

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
    calls += "epoch " + std::to_string(epoch) + " from " + std::to_string(first) + "\n";
  }
  void training_step(std::size_t step) override {
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
  std::size_t epoch_ = 0;
  trainer::Sums losses_;
};

// Writes down when it was called, and the metrics.
struct Recorder : trainer::Callback {
  void on_step_end(Trainer& t) override { calls += "step " + std::to_string(t.step()) + "\n"; }
  void on_log(Trainer& t) override { calls += "log " + std::to_string(t.metric("train_loss_step")) + "\n"; }
  void on_epoch_end(Trainer& t) override {
    calls += "epoch " + std::to_string(t.epochs()) + " " + std::to_string(t.metric("train_loss_epoch")) + "\n";
  }
  void on_fit_end(Trainer& t) override { calls += "end " + std::to_string(t.step()) + " " + t.stopped() + "\n"; }
  std::string calls;
};

struct Training : ::testing::Test {
  static void SetUpTestSuite() {
    world_ = std::make_unique<multinode::World>("trainer_test", multinode::Launch{}, multinode::World::Options{});
    communicator_ = multinode::make_communicator(*world_, multinode::choose_cpu_backend(*world_));
  }
  static void TearDownTestSuite() {
    communicator_.reset();
    world_.reset();
  }
  static Trainer make(trainer::TrainerOptions options) { return Trainer(std::move(options)); }

  static inline std::unique_ptr<multinode::World> world_;
  static inline std::unique_ptr<multinode::Communicator> communicator_;
};

ddp::Restored Number::restore(const std::vector<fs::path>& newest_first, const nlohmann::json& hyperparameters) {
  return ddp::load_checkpoint(*Training::world_, *Training::communicator_, newest_first, blocks_, hyperparameters);
}

TEST_F(Training, CallbacksComeInOrderAndMetricsAreMeans) {
  Number number({1, 2});
  Recorder recorder;
  make({.max_epochs = 2, .max_steps = 5, .log_every = 2, .callbacks = {&recorder}}).fit(number);
  EXPECT_EQ(number.calls, "epoch 1 from 0\nepoch 2 from 0\n");
  // 10, 16, 20, 30, 36, with 1, 2, 3, 1, 2 samples
  EXPECT_EQ(recorder.calls,
            "step 1\nlog 14.000000\nstep 2\nlog 20.000000\nepoch 1 17.000000\nstep 3\n"
            "step 4\nlog 34.000000\nstep 5\nend 5 \n");
}

TEST_F(Training, EarlyStoppingStopsWhenNothingGetsBetter) {
  const auto expect = [](const std::vector<double>& values, bool largest, std::size_t patience, std::size_t epochs) {
    Number number(values);
    trainer::EarlyStopping early("val_loss", largest, patience);
    Trainer t = make({.max_epochs = values.size(), .callbacks = {&early}});
    t.fit(number);
    EXPECT_EQ(t.epochs(), epochs);
    EXPECT_EQ(t.stopped(), epochs == values.size()
                               ? ""
                               : "val_loss has not been better for " + std::to_string(patience) + " epochs");
  };
  expect({5, 4, 4, 3.9, 4, 3.9, 3.9, 1}, false, 3, 7);
  expect({1, 2, 3, 2, 3, 9}, true, 2, 5);
  expect({3, std::nan(""), HUGE_VAL, 1}, false, 2, 3);
  expect({9, 8, 7, 6}, false, 1, 4);
}

TEST_F(Training, TheBestCheckpointIsTheBestAndTheNewestAreKept) {
  const TemporaryFolder folder;
  Number number({std::nan(""), 2, std::nan(""), 1.5, 1.5, 2}), read({});
  trainer::EarlyStopping best("val_loss", false, 100);
  trainer::ModelCheckpoint checkpoints(*world_, folder / "new", 0, &best);
  make({.max_epochs = 6, .callbacks = {&best, &checkpoints}}).fit(number);
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder / "new")) files.insert(entry.path().filename().string());
  EXPECT_EQ(files,
            (std::set<std::string>{"best.checkpoint", "step-0000000015.checkpoint", "step-0000000018.checkpoint"}));
  const auto blocks = read.state();
  EXPECT_EQ(ddp::read_checkpoint(folder / "new/best.checkpoint", blocks).at("trainer").at("epochs"), 4);
  EXPECT_NE(read.number, number.number);
  EXPECT_EQ(ddp::read_checkpoint(checkpoints.newest().at(0), blocks).at("trainer").at("epochs"), 6);
  EXPECT_EQ(read.number, number.number);
}

// Breaks in an epoch, at its end, at a step with a checkpoint, while the patience runs, and several.
TEST_F(Training, ABreakChangesNotABit) {
  const auto train = [](const fs::path& folder, std::size_t max_steps, Recorder& recorder) {
    Number number({5, 4, 4.5, 3, 3.5, 3.25, 3, 2});  // stops after epoch 7, where patience is 3
    trainer::EarlyStopping early("val_loss", false, 3);
    trainer::ModelCheckpoint checkpoints(*world_, folder, 2, &early);
    Trainer t = make({.max_epochs = 8,
                      .max_steps = max_steps,
                      .log_every = 2,
                      .hyperparameters = {{"--seed", 1}},
                      .callbacks = {&recorder, &early, &checkpoints}});
    t.fit(number, checkpoints.newest());
    return std::tuple(number.number[0], t.step(), t.stopped());
  };
  const TemporaryFolder folder;
  Recorder whole_calls;
  const auto whole = train(folder / "whole", 100, whole_calls);
  EXPECT_EQ(std::get<1>(whole), 21u);
  for (const std::vector<std::size_t>& breaks :
       std::vector<std::vector<std::size_t>>{{2}, {3}, {4}, {16}, {18}, {20}, {21}, {2, 7, 15, 16, 20}}) {
    std::string name = "broken", calls;
    for (const std::size_t step : breaks) {
      name += "-" + std::to_string(step);
      Recorder recorder;
      train(folder / name, step, recorder);
      calls += recorder.calls.substr(0, recorder.calls.rfind("end"));
    }
    Recorder recorder;
    EXPECT_EQ(train(folder / name, 100, recorder), whole) << name;
    // A run's last step logs, so only breaks at logs have the same lines.
    if (breaks.size() == 1 && breaks[0] % 3 != 1) {
      EXPECT_EQ(calls + recorder.calls, whole_calls.calls) << name;
    }
  }
}

}  // namespace trainer_test
