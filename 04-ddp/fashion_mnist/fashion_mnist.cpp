// fashion_mnist: trains a perceptron to classify images of clothes; each rank has a part of every batch. The loop is in
// trainer.hpp, the training step in model/training_step.hpp. Exit status: 0 all ranks have the same parameters and the
// accuracy is high enough; 1 not, failed or timed out; 2 bad command line or environment; 77 no GPU for --backend nccl.
// SPDX-License-Identifier: Apache-2.0
#include "data/fashion_mnist.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "model/training_step.hpp"
#include "trainer.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

namespace {

constexpr double momentum = 0.9;  // of sgd
constexpr std::size_t nan_step = 5;
constexpr std::size_t steps_between_looks = 10;

// SIGUSR1 has come: the time of this job is nearly over. A signal handler may touch nothing else.
volatile std::sig_atomic_t save_asked = 0;

struct Options {
  multinode::CommonOptions common;
  std::string folder = data::default_folder;
  int epochs = 3;
  std::int64_t batch_size = 128;
  std::string optimizer = "sgd";
  std::optional<double> learning_rate;
  double dropout = 0.25;
  std::string precision = "float";
  bool output_relu = false;
  std::string checkpoint;
  std::int64_t checkpoint_every = 0;
  std::int64_t steps = 0;
  std::int64_t patience = 0;
  std::int64_t log_every = 100;
  std::optional<double> min_accuracy;
  std::optional<int> corrupt, nan;

  multinode::Program program() {
    namespace po = boost::program_options;
    po::options_description known("Options of fashion_mnist");
    known.add_options()                                                                                              //
        ("data", po::value(&folder)->default_value(folder)->value_name("DIR"), "folder with the four IDX files")     //
        ("epochs", po::value(&epochs)->default_value(epochs), "passes over all images")                              //
        ("batch-size", po::value(&batch_size)->default_value(batch_size), "images per step, of all ranks together")  //
        ("optimizer", po::value(&optimizer)->default_value(optimizer), "sgd or adam")                                //
        ("learning-rate", multinode::given(learning_rate),
         "at the start; it falls linearly to 0 (default: 0.05, with adam 0.001)")                                   //
        ("dropout", po::value(&dropout)->default_value(dropout), "fraction of the hidden units that are left out")  //
        ("precision", po::value(&precision)->default_value(precision), "float or double")                           //
        ("relu-on-output", po::bool_switch(&output_relu),
         "a ReLU on the output layer, as in the tutorial; it learns more slowly")  //
        ("checkpoint", po::value(&checkpoint)->value_name("DIR"),
         "write checkpoints to this folder, also at SIGUSR1, and resume from the newest one in it")  //
        ("checkpoint-every", po::value(&checkpoint_every)->default_value(checkpoint_every),
         "steps between two checkpoints; 0: one after each epoch")                                     //
        ("steps", po::value(&steps)->default_value(steps), "stop after this many steps; 0: no limit")  //
        ("patience", po::value(&patience)->default_value(patience),
         "stop after this many epochs without a better test accuracy, and keep best.checkpoint; 0: train all epochs")  //
        ("log-every", po::value(&log_every)->default_value(log_every), "steps between two lines of output")  //
        ("min-accuracy", multinode::given(min_accuracy),
         "exit with 1 below this test accuracy, in % (default: 86 after 3 epochs or more, else 0)")      //
        ("corrupt", multinode::given(corrupt), "plant a fault: this rank starts with other parameters")  //
        ("nan", multinode::given(nan), "plant a fault: a gradient of this rank is NaN in step 5");
    return {"fashion_mnist", known, common, [this] { validate(); }};
  }

  void validate() const {
    using multinode::require_range;
    require_range("--epochs", epochs, 1, 100'000);
    require_range<std::int64_t>("--batch-size", batch_size, 1, 1'000'000);
    if (optimizer != "sgd" && optimizer != "adam")
      throw multinode::UsageError("--optimizer must be sgd or adam, not '" + optimizer + "'");
    require_range("--learning-rate", first_rate(), 0.0, 1e6);
    require_range("--dropout", dropout, 0.0, 0.99);
    if (precision != "float" && precision != "double")
      throw multinode::UsageError("--precision must be float or double, not '" + precision + "'");
    require_range<std::int64_t>("--checkpoint-every", checkpoint_every, 0, 1'000'000'000);
    if (checkpoint_every > 0 && checkpoint.empty())
      throw multinode::UsageError("--checkpoint-every needs --checkpoint DIR");
    require_range<std::int64_t>("--steps", steps, 0, 1'000'000'000);
    require_range<std::int64_t>("--patience", patience, 0, 100'000);
    require_range<std::int64_t>("--log-every", log_every, 1, 1'000'000'000);
    require_range("--min-accuracy", min_accuracy.value_or(0), 0.0, 100.0);
    multinode::parse_backend(common.backend);
  }

  double first_rate() const { return learning_rate.value_or(optimizer == "adam" ? 0.001 : 0.05); }

  // What a training that is resumed cannot change: the result would be that of neither.
  nlohmann::json hyperparameters(const data::FashionMnist& images) const {
    const auto& [train, test] = images;
    return {{"program", "fashion_mnist"},
            {"--batch-size", batch_size},
            {"--dropout", dropout},
            {"--epochs", epochs},
            {"--learning-rate", first_rate()},
            {"--optimizer", optimizer},
            {"--precision", precision},
            {"--relu-on-output", output_relu},
            {"--seed", common.seed},
            {"the data set of CRC-32",
             checkpoint.empty() ? "" : ddp::crc32_of({train.pixels, train.labels, test.pixels, test.labels})}};
  }
};

std::size_t count(std::int64_t number) { return static_cast<std::size_t>(number); }

template <class Model>
using Optimizer = std::variant<typename Model::Sgd, typename Model::Adam>;
template <class Model>
Optimizer<Model> make_optimizer(Model& model, const Options& options) {
  if (options.optimizer == "adam")
    return Optimizer<Model>(std::in_place_type<typename Model::Adam>, model.parameters());
  return Optimizer<Model>(std::in_place_type<typename Model::Sgd>, model.parameters(), momentum);
}

template <class Model>
class Classifier : public trainer::Module {
  using T = typename Model::value_type;
  using Batch = data::Batch<T>;

 public:
  // All ranks start from rank 0's parameters.
  Classifier(multinode::World& world, multinode::Communicator& communicator, const Options& options,
             const data::FashionMnist& images)
      : world_(world),
        communicator_(communicator),
        options_(options),
        images_(images),
        sampler_(images.train.size(), count(options.batch_size), world.rank(), world.size(), options.common.seed),
        capacity_(std::max<std::size_t>(
            (std::min(count(options.batch_size), images.train.size()) - 1) / count(world.size()) + 1, 250)),
        model_({.sizes = {data::image_bytes, 512, 512, data::classes}, .output_relu = options.output_relu}, capacity_),
        optimizer_(make_optimizer(model_, options)),
        reducer_(make_reducer(world, communicator, model_)) {
    start_training(world, communicator, model_, options.common.seed);
    std::vector<ddp::NamedBlock> kept = model_.parameters();
    std::visit([&](auto& optimizer) { std::ranges::copy(optimizer.state(), std::back_inserter(kept)); }, optimizer_);
    kept_.emplace(model_, kept);
    if (world.rank() == options.corrupt) model_.initialize(options.common.seed + 1);
  }

  Model& model() { return model_; }
  const ddp::Reducer<T>& reducer() const { return reducer_; }
  std::size_t planned() const { return count(options_.epochs) * sampler_.steps(); }

  const std::vector<ddp::NamedBlock>& state() override { return world_.rank() == 0 ? kept_->fetch() : nothing_; }
  ddp::Restored restore(const std::vector<std::filesystem::path>& newest_first,
                        const nlohmann::json& hyperparameters) override {
    return kept_->load(world_, communicator_, newest_first, hyperparameters);
  }
  std::size_t steps() const override { return sampler_.steps(); }

  void begin_epoch(std::size_t epoch, std::size_t first) override {
    sampler_.set_epoch(static_cast<std::uint32_t>(epoch));
    step_ = (epoch - 1) * steps() + first;
    begun_ = std::chrono::steady_clock::now();
    trained_ = 0;
  }

  void training_step(std::size_t step) override {
    data::gather(images_.train, sampler_.local_batch(step), batch_);
    const std::size_t divisor = sampler_.global_batch(step).size();
    const double rate = options_.first_rate() * (1 - static_cast<double>(step_) / static_cast<double>(planned()));
    const model::Dropout dropout{options_.dropout, options_.common.seed, static_cast<std::uint32_t>(step_)};
    const bool plant = world_.rank() == options_.nan && step_ + 1 == nan_step;
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
    GradientHook plant_nan;
    if (plant && on_gpu<Model>) batch_.inputs.at(0) = nan;
    if (plant && !on_gpu<Model>)
      plant_nan = [&](std::size_t parameter) {
        if (parameter == 0) reducer_.gradient(parameter)[0] = nan;
      };
    std::visit(
        [&](auto& optimizer) { train_step(model_, optimizer, reducer_, batch_, divisor, dropout, rate, plant_nan); },
        optimizer_);
    samples_ += static_cast<double>(batch_.size());
    ++step_;
  }

  trainer::Sums take_losses() override {
    double sums[] = {take_totals(world_, communicator_, model_).loss, std::exchange(samples_, 0)};
    sum_over_ranks(communicator_, model_, sums);
    trained_ += sums[1];
    return {sums[0], sums[1]};
  }

  // Each rank looks at its part of the images.
  trainer::Metrics validate() override {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun_;
    const ddp::Range part = ddp::part_of(images_.test.size(), count(world_.rank()), count(world_.size()));
    Batch batch;
    for (std::size_t begin = part.begin; begin < part.end; begin += capacity_) {
      std::vector<std::uint32_t> samples(std::min(capacity_, part.end - begin));
      std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(begin));
      data::gather(images_.test, samples, batch);
      model_.load(batch, {.step = static_cast<std::uint32_t>(step_)});
      model_.forward();
    }
    const model::Totals totals = take_totals(world_, communicator_, model_, true);
    double sums[] = {totals.loss, static_cast<double>(totals.right)};
    sum_over_ranks(communicator_, model_, sums);
    const auto images = static_cast<double>(images_.test.size());
    return {{"val_loss", sums[0] / images},
            {"val_accuracy", 100 * sums[1] / images},
            {"seconds", seconds.count()},
            {"samples_per_second", trained_ / seconds.count()}};
  }

  // Whether a rank has had SIGUSR1. All ranks have to do the same, so they look together, and not in every step.
  bool save_is_asked(std::size_t step) {
    if (step % steps_between_looks != 0) return false;
    double ranks = save_asked;
    sum_over_ranks(communicator_, model_, {&ranks, 1});
    if (ranks > 0) save_asked = 0;
    return ranks > 0;
  }

 private:
  multinode::World& world_;
  multinode::Communicator& communicator_;
  const Options& options_;
  const data::FashionMnist& images_;

  ddp::DistributedSampler sampler_;
  std::size_t capacity_;  // samples that the model takes at once
  std::size_t step_ = 0;  // steps so far, of all epochs
  double samples_ = 0;    // of this rank, since take_losses()
  double trained_ = 0;    // samples of all ranks, since begin_epoch()
  std::chrono::steady_clock::time_point begun_;

  Model model_;
  Optimizer<Model> optimizer_;
  ddp::Reducer<T> reducer_;
  std::optional<CheckpointBlocks<Model>> kept_;
  std::vector<ddp::NamedBlock> nothing_;
  Batch batch_;
};

template <class Model>
int train(multinode::World& world, multinode::Communicator& communicator, const Options& options,
          const data::FashionMnist& images) {
  Classifier<Model> classifier(world, communicator, options, images);
  const auto say = [&](const std::string& line) {
    if (world.rank() == 0) std::cout << line << std::endl;
  };
  say(fmt::format("{} images to learn from, {} to test with; ", images.train.size(), images.test.size()) +
      classifier.reducer().summary(communicator));
  std::optional<multinode::JsonLines> json;
  trainer::TrainerOptions settings{.max_epochs = count(options.epochs),
                                   .log_every = count(options.log_every),
                                   .hyperparameters = options.hyperparameters(images),
                                   .patience = count(options.patience),
                                   .score = [](const auto& metrics) { return metrics.at("val_accuracy"); },
                                   .checkpoints = options.checkpoint,
                                   .checkpoint_every = count(options.checkpoint_every)};
  if (options.steps > 0) settings.max_steps = count(options.steps);
  settings.save_asked = [&](std::size_t step) { return classifier.save_is_asked(step); };
  settings.on_log = [&](const trainer::Trainer& trainer) {
    const std::size_t steps = classifier.steps(), step = trainer.step() - trainer.epochs() * steps;
    const bool ends = step == steps || trainer.done();  // the line of the epoch comes next
    if (ends && options.log_every > 1) return;
    say(fmt::format("epoch {} step {} of {}: loss {:.4f}", trainer.epochs() + 1, step, steps,
                    trainer.metrics().at("train_loss_step")));
  };
  settings.on_validation_end = [&](const trainer::Trainer& trainer) {
    const double loss = trainer.metrics().at("train_loss_epoch"), accuracy = trainer.metrics().at("val_accuracy");
    const double seconds = trainer.metrics().at("seconds"), speed = trainer.metrics().at("samples_per_second");
    const std::size_t epoch = trainer.epochs() + 1;
    say(fmt::format("epoch {}: loss {:.4f}, test accuracy {:.2f} %, {:.2f} s, {:.0f} samples/s", epoch, loss, accuracy,
                    seconds, speed));
    json->write({{"epoch", epoch},
                 {"steps", trainer.step()},
                 {"loss", loss},
                 {"accuracy", accuracy},
                 {"seconds", seconds},
                 {"samples_per_second", speed}});
  };
  trainer::Trainer trainer(world, classifier, settings);
  json.emplace(world.rank() == 0 ? options.common.json : "", !trainer.resumed().empty());
  if (world.rank() == 0) json->write(multinode::fingerprint(world));
  if (!trainer.resumed().empty())
    say(fmt::format("resumes from {}, after step {} of {}", trainer.resumed().string(), trainer.step(),
                    classifier.planned()));
  else if (!options.checkpoint.empty())
    say(fmt::format("starts at step 0 of {}: no checkpoint in {} of {}", classifier.planned(), options.checkpoint,
                    world.host(0)));
  trainer.fit();
  if (trainer.stopped())
    say(fmt::format("stopped: the test accuracy has not been better for {} epochs", options.patience));

  // Right: the same parameters on all ranks, which have learned enough.
  const trainer::Metrics metrics = trainer.metrics().empty() ? classifier.validate() : trainer.metrics();
  const double accuracy = metrics.at("val_accuracy");
  const std::vector<std::string> hashes = parameter_hashes(world, classifier.model());
  const bool identical = std::ranges::count(hashes, hashes[0]) == world.size();
  const bool whole = options.steps == 0 || trainer.step() >= 3 * classifier.steps();
  const double wanted = options.min_accuracy.value_or(options.epochs >= 3 && whole ? 86 : 0);
  const bool right = identical && accuracy >= wanted;
  for (std::size_t r = 0; r < hashes.size() && !identical; ++r)
    say("parameters: " + hashes[r] + " on rank " + std::to_string(r));
  if (identical) say("parameters: " + hashes[0] + " on every rank");
  say(fmt::format("{}: test accuracy {:.2f} %", right ? "RIGHT" : "WRONG", accuracy) +
      (wanted > 0 ? fmt::format(", at least {:g} % wanted", wanted) : "") +
      (identical ? "" : "; the ranks' parameters differ"));
  json->write({{"right", right}, {"accuracy", accuracy}, {"parameters", hashes[0]}, {"identical", identical}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

int run(multinode::World& world, const Options& options) {
  if (!options.checkpoint.empty()) std::signal(SIGUSR1, [](int) { save_asked = 1; });
  for (const auto& [name, rank] : {std::pair("--corrupt", options.corrupt), {"--nan", options.nan}})
    multinode::require_range(name, rank.value_or(0), 0, world.size() - 1);
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  const data::FashionMnist images = data::read_fashion_mnist(options.folder);
  const auto train_on = [&]<class Model>() { return train<Model>(world, *communicator, options, images); };
  return options.precision == "double" ? with_perceptron<double>(*communicator, train_on)
                                       : with_perceptron<float>(*communicator, train_on);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
