// The Trainer and its callbacks: on one rank in this process, and what it promises of several by trainer_ranks.
#include "trainer/trainer.hpp"
#include "fashion_mnist_ways.hpp"
#include "idx_files.hpp"
#include "tiny_training.hpp"

#include <multinode/check.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <set>

namespace trainer_test {

namespace fs = std::filesystem;
using trainer::Trainer;
using trainer::TrainerOptions;
using Strings = std::vector<std::string>;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

struct OneRank : ::testing::Test {
  static void SetUpTestSuite() {
    world_ = std::make_unique<multinode::World>("trainer_test", multinode::Launch{}, multinode::World::Options{});
    communicator_ = multinode::make_communicator(*world_, multinode::choose_cpu_backend(*world_));
  }
  static void TearDownTestSuite() {
    communicator_.reset();
    world_.reset();
  }
  static Trainer make(TrainerOptions options) { return {*world_, *communicator_, std::move(options)}; }
  static nlohmann::json state_in(const fs::path& file, Line& line) {
    auto blocks = line.parameters();
    const auto optimizer = line.configure_optimizer();
    for (const ddp::NamedBlock& block : optimizer->state()) blocks.push_back(block);
    return ddp::read_checkpoint(file, blocks);
  }
  template <class Exception, class Function>
  static std::string what(Function function) {
    try {
      function();
    } catch (const Exception& e) {
      return e.what();
    }
    return "nothing of this kind was thrown";
  }

  static inline std::unique_ptr<multinode::World> world_;
  static inline std::unique_ptr<multinode::Communicator> communicator_;
};

// Writes down when it was called.
struct Recorder : Doing {
  Recorder(const std::string& name, Strings& calls) {
    const auto record = [&calls, name](const char* what, auto number) {
      return [&calls, text = name + what, number](Trainer& t) { calls.push_back(text + std::to_string(number(t))); };
    };
    const auto step = [](Trainer& t) { return t.step(); };
    const auto epochs = [](Trainer& t) { return t.epochs(); };
    fit_begin = record("fit begin ", step);
    step_end = record("step ", step);
    log = record("log ", step);
    validation_end = record("validation ", epochs);
    epoch_end = record("epoch ", epochs);
    fit_end = record("fit end ", step);
  }
};

TEST_F(OneRank, CallbacksComeInOrder) {
  Strings calls;
  Recorder a("a ", calls), b("b ", calls);
  Line line(*world_, 16);  // 3 batches
  make({.max_epochs = 2, .log_every = 2, .callbacks = {&a, &b}}).fit(line, line);
  Strings expected;
  for (const char* call : {"fit begin 0", "step 1", "log 2", "step 2", "log 3", "step 3", "validation 0", "epoch 1",
                           "log 4", "step 4", "step 5", "log 6", "step 6", "validation 1", "epoch 2", "fit end 6"})
    for (const char* name : {"a ", "b "}) expected.push_back(std::string(name) + call);
  EXPECT_EQ(calls, expected);
}

TEST_F(OneRank, StepsAreLimitedInTheMiddleOfAnEpoch) {
  Line line(*world_);  // 6 batches
  Trainer t = make({.max_epochs = 5, .max_steps = 8});
  t.fit(line, line);
  EXPECT_EQ(t.step(), 8u);
  EXPECT_EQ(t.epochs(), 1u);
  EXPECT_EQ(t.batch(), 2u);
  EXPECT_EQ(t.stopped(), "");
}

TEST_F(OneRank, NoEpochsTrainAndWriteNothing) {
  const TemporaryFolder folder;
  Strings calls;
  Recorder a("", calls);
  trainer::ModelCheckpoint checkpoints(*world_, {.folder = folder.path()});
  Line line(*world_);
  make({.max_epochs = 0, .callbacks = {&a, &checkpoints}}).fit(line, line);
  EXPECT_EQ(calls, (Strings{"fit begin 0", "fit end 0"}));
  EXPECT_EQ(line.slope(), 0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST_F(OneRank, MetricsAreMeansOverSamples) {
  Line line(*world_);
  std::vector<double> steps;
  Doing doing;
  doing.log = [&](Trainer& t) { steps.push_back(t.metric("train_loss_step")); };
  line.loss_in_step = [](std::size_t step, double) { return step < 4 ? 8.0 : step < 5 ? 16.0 : 3.0; };
  Trainer t = make({.log_every = 2, .callbacks = {&doing}});
  t.fit(line, line);
  EXPECT_EQ(steps, (std::vector<double>{1, 1, 19.0 / 9}));  // the last batch has one sample
  EXPECT_DOUBLE_EQ(t.metric("train_loss_epoch"), 51.0 / 41);
  double loss = 0;
  for (std::uint32_t s = 0; s < 10; ++s) loss += std::pow(double(line.slope() * x_of(s) + line.offset() - y_of(s)), 2);
  EXPECT_NEAR(t.metric("val_loss"), loss / 10, 1e-6);
  EXPECT_EQ(what<std::invalid_argument>([&] { t.metric("val_los"); }),
            "there is no metric 'val_los'; there are: 'train_loss_epoch' 'train_loss_step' 'val_loss'");
}

TEST_F(OneRank, EarlyStoppingStopsWhenNothingGetsBetter) {
  const auto expect = [](const std::vector<double>& values, const trainer::EarlyStoppingOptions& options,
                         std::size_t epochs, const std::string& reason) {
    Line line(*world_, 16, values);
    trainer::EarlyStopping early(options);
    Trainer t = make({.max_epochs = 8, .callbacks = {&early}});
    for (int fit = 0; fit < 2; ++fit) {  // the second begins anew
      t.fit(line, line);
      EXPECT_EQ(t.epochs(), epochs);
      EXPECT_EQ(t.stopped(), reason);
    }
  };
  expect({5, 4, 4, 3.9, 4, 3.9, 3.9}, {.patience = 3}, 7, "val_loss has not been better than 3.9 for 3 epochs");
  expect({5, 4.5, 4.25, 4}, {.patience = 1, .min_delta = 0.5}, 2,
         "val_loss has not been better than 5 by more than 0.5 for 1 epoch");
  expect({5, 4.75, 4.25, 4}, {.patience = 2, .min_delta = 0.5}, 5,
         "val_loss has not been better than 4.25 by more than 0.5 for 2 epochs");
  expect({1, 2, 3, 2, 3}, {.mode = trainer::Mode::max, .patience = 2}, 5,
         "val_loss has not been better than 3 for 2 epochs");
  expect({3, nan_value, 1}, {}, 2, "val_loss is not finite");
  expect({-std::numeric_limits<double>::infinity()}, {}, 1, "val_loss is not finite");
  expect({9, 8, 7, 6, 5, 4, 3, 2}, {.patience = 1}, 8, "");

  Line line(*world_);
  trainer::EarlyStopping early({.monitor = "val_acuracy"});
  EXPECT_NE(what<std::invalid_argument>([&] { make({.callbacks = {&early}}).fit(line, line); }).find("'val_acuracy'"),
            std::string::npos);
}

TEST_F(OneRank, TheBestCheckpointIsTheBestAndTheNewestAreKept) {
  const TemporaryFolder folder;
  Line line(*world_, 8, {nan_value, 2, nan_value, 1.5, 1.5, 2});
  trainer::ModelCheckpoint checkpoints(*world_, {.folder = folder / "new", .keep = 2});
  std::vector<float> slopes;
  Doing doing;
  doing.epoch_end = [&](Trainer&) { slopes.push_back(line.slope()); };
  make({.max_epochs = 6, .callbacks = {&doing, &checkpoints}}).fit(line, line);
  EXPECT_EQ(checkpoints.best_value(), 1.5);
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder / "new")) files.insert(entry.path().filename().string());
  EXPECT_EQ(files,
            (std::set<std::string>{"best.checkpoint", "step-0000000030.checkpoint", "step-0000000036.checkpoint"}));
  Line best(*world_);
  EXPECT_EQ(state_in(checkpoints.best(), best).at("trainer").at("epochs"), 4);
  EXPECT_EQ(best.slope(), slopes[3]);
  EXPECT_NE(best.slope(), slopes[4]);
  EXPECT_EQ(state_in(checkpoints.newest().value(), best).at("trainer").at("epochs"), 6);
  EXPECT_EQ(best.slope(), slopes[5]);
}

TEST_F(OneRank, CheckpointsOfOtherTrainingsAreRefused) {
  const TemporaryFolder folder;
  const auto fit = [&](const nlohmann::json& hyperparameters, std::size_t batch, bool resume) {
    Line line(*world_, batch);
    trainer::ModelCheckpoint checkpoints(*world_, {.folder = folder.path()});
    make({.max_steps = 3, .hyperparameters = hyperparameters, .callbacks = {&checkpoints}})
        .fit(line, line, resume ? checkpoints.newest() : std::nullopt);
  };
  fit({{"seed", 1}}, 8, false);
  const std::string file = folder.path().string() + "/step-0000000003.checkpoint: ";
  const std::string advice = "; go on with the same, or name another folder";
  EXPECT_EQ(what<multinode::UsageError>([&] {
              fit({{"seed", 2}}, 8, true);
            }),
            file + "a training with seed 1, not 2" + advice);
  EXPECT_EQ(what<multinode::UsageError>([&] {
              fit({{"seed", 1}}, 16, true);
            }),
            file + "a training with batches in an epoch 6, not 3" + advice);
  EXPECT_EQ(what<multinode::UsageError>([&] {
              fit({{"seed", 1}}, 8, false);
            }),
            folder.path().string() +
                " has checkpoints of a training before this one: go on from them, or use another folder");

  Line line(*world_);
  auto blocks = line.parameters();
  const auto optimizer = line.configure_optimizer();
  for (const ddp::NamedBlock& block : optimizer->state()) blocks.push_back(block);
  ddp::write_checkpoint(folder / "other", {{"program", "fashion_mnist"}, {"batches in an epoch", 6}}, blocks);
  EXPECT_EQ(what<multinode::UsageError>([&] { make({}).fit(line, line, folder / "other"); }),
            (folder / "other").string() + ": a training with program \"fashion_mnist\", not \"trainer_test\"" + advice);
}

TEST_F(OneRank, GradientsAreClippedToTheirNorm) {
  const auto moved = [&](double clip) {
    Line line(*world_);
    make({.max_steps = 1, .gradient_clip = clip}).fit(line, line);
    return std::hypot(double(line.slope()), double(line.offset()));
  };
  const double whole = moved(0);
  EXPECT_EQ(moved(1000), whole);
  EXPECT_GT(whole, 2 * Line::rate);
  EXPECT_NEAR(moved(0.5), 0.5 * Line::rate, 1e-7);
}

TEST_F(OneRank, WhatMakesNoTrainingIsRefused) {
  Line line(*world_);
  EXPECT_THROW(make({.accumulate_batches = 0}), std::invalid_argument);
  EXPECT_THROW(make({.log_every = 0}), std::invalid_argument);
  EXPECT_THROW(make({.gradient_clip = nan_value}), std::invalid_argument);
  trainer::EarlyStopping one({}), other({});
  EXPECT_EQ(what<std::invalid_argument>([&] {
              make({.callbacks = {&one, &other}});
            }),
            "Trainer: two callbacks are named 'early stopping by val_loss'");
  EXPECT_THROW(trainer::EarlyStopping({.patience = 0}), std::invalid_argument);
  EXPECT_THROW(trainer::EarlyStopping({.min_delta = -1}), std::invalid_argument);
  line.loss_in_step = [](std::size_t step, double loss) { return step == 2 ? nan_value : loss; };
  EXPECT_EQ(what<std::runtime_error>([&] { make({}).fit(line, line); }),
            "the loss is nan in step 3; a smaller learning rate may help");
}

TEST_F(OneRank, ResultsAsJson) {
  const TemporaryFolder folder;
  const std::string file = folder / "log.json";
  Line line(*world_, 16, {2, nan_value});  // 3 batches
  trainer::JsonLogger logger(file);
  make({.max_epochs = 2, .log_every = 2, .callbacks = {&logger}}).fit(line, line);
  logger.write({{"right", true}});
  std::vector<nlohmann::json> lines;
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) lines.push_back(nlohmann::json::parse(text));
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0].at("fingerprint").at("world_size"), 1);
  EXPECT_EQ(lines[1].at("step"), 2);
  EXPECT_GT(lines[1].at("train_loss_step"), 0);
  EXPECT_EQ(lines[3].at("epoch"), 1);
  EXPECT_EQ(lines[3].at("step"), 3);
  EXPECT_EQ(lines[3].at("val_loss"), 2);
  EXPECT_GT(lines[3].at("train_loss_epoch"), 0);
  EXPECT_FALSE(lines[3].contains("train_loss_step"));
  EXPECT_TRUE(lines[6].at("val_loss").is_null());
  EXPECT_EQ(lines[7], (nlohmann::json{{"right", true}}));
}

// What a killed run wrote after its last checkpoint, and half a line, is not there twice in the end.
TEST_F(OneRank, TheLogGoesOnWhereTheCheckpointIs) {
  const TemporaryFolder folder;
  const std::string file = folder / "log.json";
  const auto fit = [&](std::size_t max_steps) {
    Line line(*world_);
    trainer::JsonLogger logger(file);
    trainer::ModelCheckpoint checkpoints(*world_, {.folder = folder / "checkpoints"});
    make({.max_epochs = 2, .max_steps = max_steps, .log_every = 3, .callbacks = {&logger, &checkpoints}})
        .fit(line, line, checkpoints.newest());
  };
  fit(6);
  std::ofstream(file, std::ios::app) << R"({"epoch":2,"step":9,"train_loss_step":77})"
                                     << "\n"
                                     << R"({"epoch":2,"st)";
  fit(100);
  std::vector<std::size_t> steps;
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  while (std::getline(in, text)) {
    const auto line = nlohmann::json::parse(text);
    EXPECT_NE(line.value("train_loss_step", 0.0), 77);
    steps.push_back(line.at("step"));
  }
  EXPECT_EQ(steps, (std::vector<std::size_t>{3, 6, 6, 9, 12, 12}));
}

TEST_F(OneRank, TheProgressIsShown) {
  Line line(*world_, 8, {4, 4});
  trainer::ProgressBar bar;
  trainer::EarlyStopping early({.patience = 1});
  testing::internal::CaptureStdout();
  make({.max_epochs = 5, .log_every = 4, .callbacks = {&bar, &early}}).fit(line, line);
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(std::regex_match(shown, std::regex("parameter  shape  elements\n"
                                                 "slope          1         1\n"
                                                 "offset         1         1\n"
                                                 "2 parameters, 0.00 MB\n"
                                                 "epoch 1 step 4 of 6: train_loss_step [0-9.]+\n"
                                                 "epoch 1: train_loss_epoch [0-9.]+, val_loss 4, [0-9.]+ s\n"
                                                 "epoch 2 step 2 of 6: train_loss_step [0-9.]+\n"
                                                 "epoch 2: train_loss_epoch [0-9.]+, val_loss 4, [0-9.]+ s\n"
                                                 "stopped: val_loss has not been better than 4 for 1 epoch\n")))
      << shown;
}

class OnRanks : public ::testing::TestWithParam<int> {
 protected:
  Ranks::End run(const std::string& check, const Strings& more = {}, int ranks = GetParam()) const {
    Strings command{PATH_trainer_ranks, "--check", check};
    command.insert(command.end(), more.begin(), more.end());
    return Ranks(quickest_way().starter, ranks, command).wait();
  }
};

TEST_P(OnRanks, TheyAllStopInTheSameStep) {
  for (const char* check : {"plateau", "one-stops"}) {
    const Ranks::End end = run(check);
    EXPECT_EQ(end.status, 0) << check << ": " << end.output;
  }
}

TEST_P(OnRanks, OneThatThrowsEndsAll) {
  const Ranks::End end = run("one-throws");
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "rank " + std::to_string(GetParam() - 1) + " (host ");
  EXPECT_EQ(occurrences(end.output, "a mistake in a callback"), 1u) << end.output;
}

class OnSeveralRanks : public OnRanks {};

TEST_P(OnSeveralRanks, OneThatDoesSomethingElseIsNamed) {
  const std::string last = "; rank " + std::to_string(GetParam() - 1) + " has ";
  Ranks::End end = run("other-metrics");
  EXPECT_EQ(end.status, 1);
  EXPECT_SAYS(end.output, "the ranks' metrics differ: rank 0 has val_loss" + last + "val_loss, val_speed\n");
  end = run("other-options");
  EXPECT_EQ(end.status, 1);
  EXPECT_SAYS(end.output, "the ranks' trainings differ: rank 0 has {");
  EXPECT_SAYS(end.output, "\"max_epochs\":1");
  EXPECT_SAYS(end.output, "\"max_epochs\":2");
}

TEST_P(OnRanks, AccumulatedBatchesAreOneLargeBatch) {
  const Ranks::End end = run("accumulate");
  EXPECT_EQ(end.status, 0) << end.output;
}

TEST_P(OnRanks, ABreakChangesNotABit) {
  for (const char* check : {"resume", "death"}) {
    const TemporaryFolder folder;
    const Ranks::End end = run(check, {"--folder", folder.path().string()});
    EXPECT_EQ(end.status, 0) << check << ": " << end.output;
  }
}

TEST_P(OnRanks, ATrainingGoesOnWithAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  Ranks::End end = run("first-half", {"--folder", folder.path().string()});
  EXPECT_EQ(end.status, 0) << end.output;
  end = run("second-half", {"--folder", folder.path().string()}, 4 - GetParam());
  EXPECT_EQ(end.status, 0) << end.output;
}

INSTANTIATE_TEST_SUITE_P(Trainer, OnRanks, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param); });
INSTANTIATE_TEST_SUITE_P(Trainer, OnSeveralRanks, ::testing::Values(2, 3),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace trainer_test
