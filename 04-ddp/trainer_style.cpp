// trainer_style: fashion_mnist's training in the manner of PyTorch Lightning: a module, a data module, a Trainer with
// callbacks. Exit status: 0 all ranks have the same parameters and the accuracy is high enough; 1 not, failed or timed
// out; 2 bad command line or environment.
#include "data/fashion_mnist.hpp"
#include "data/loader.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "trainer/callbacks.hpp"
#include "trainer/trainer.hpp"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>

#include <algorithm>
#include <iostream>
#include <optional>

namespace {

using trainer::Batch;

std::size_t size(std::int64_t option) { return static_cast<std::size_t>(option); }

struct Options {
  multinode::CommonOptions common;
  std::string folder = data::default_folder, checkpoint;
  std::int64_t epochs = 5, steps = 0, batch_size = 128, accumulate_batches = 1, patience = 3, log_every = 100;
  std::int64_t checkpoint_every = 0;
  double learning_rate = 0.001, min_accuracy = 80;

  multinode::Program program();
};

class Classifier : public trainer::Module {
 public:
  Classifier(const Options& options, std::size_t capacity)
      : network_({.sizes = {data::image_bytes, 512, 512, data::classes}}, capacity),
        learning_rate_(options.learning_rate),
        seed_(options.common.seed) {
    network_.initialize(seed_);
  }

  std::vector<ddp::NamedBlock> parameters() override { return network_.parameters(); }
  std::unique_ptr<model::Optimizer<float>> configure_optimizer() override {
    return std::make_unique<model::Adam<float>>(network_.parameters());
  }
  double learning_rate(std::size_t) override { return learning_rate_; }

  double training_step(const Batch& batch, std::size_t step, ddp::Reducer<float>& gradients) override {
    const double loss = network_.forward(batch, {0.25, seed_, static_cast<std::uint32_t>(step)}).loss;
    std::vector<std::span<float>> places;
    for (std::size_t i = 0; i < network_.parameters().size(); ++i) places.push_back(gradients.gradient(i));
    network_.set_gradients(std::move(places));
    network_.backward([&](std::size_t i) { gradients.mark_ready(i); }, gradients.adds());
    return loss;
  }
  trainer::Metrics validation_step(const Batch& batch) override {
    const model::Score score = network_.forward(batch, {});
    return {{"val_loss", score.loss}, {"val_accuracy", static_cast<double>(score.right)}};
  }

 private:
  model::Perceptron<float> network_;
  double learning_rate_;
  std::uint64_t seed_;
};

class Clothes : public trainer::DataModule {
 public:
  Clothes(const Options& options, const multinode::World& world)
      : images_(data::read_fashion_mnist(options.folder)),
        train_(images_.train.size(), size(options.batch_size), world.rank(), world.size(), options.common.seed),
        test_(images_.test.size(), test_batch, world.rank(), world.size(), 0, ddp::Remainder::smaller, false) {}

  std::size_t training_batches() const override { return train_.steps(); }
  std::size_t training_samples(std::size_t batch) const override { return train_.global_batch(batch).size(); }
  void begin_epoch(std::size_t epoch, std::size_t first) override {
    loader_.reset();  // it reads the sampler
    train_.set_epoch(static_cast<std::uint32_t>(epoch));
    loader_.emplace(first, train_.steps(), [this](std::size_t step, Batch& batch) {
      data::gather(images_.train, train_.local_batch(step), batch);
    });
  }
  const Batch& training_batch(std::size_t) override { return loader_->next(); }

  std::size_t validation_batches() const override { return test_.steps(); }
  const Batch& validation_batch(std::size_t batch) override {
    data::gather(images_.test, test_.local_batch(batch), test_images_);
    return test_images_;
  }
  static constexpr std::size_t test_batch = 1000;

 private:
  data::FashionMnist images_;
  ddp::DistributedSampler train_, test_;
  Batch test_images_;
  std::optional<data::Loader<Batch>> loader_;
};

int run(multinode::World& world, const Options& options) {
  const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(options.common.backend));
  Clothes clothes(options, world);
  const std::size_t largest_part =
      (std::max(size(options.batch_size), Clothes::test_batch) - 1) / size(world.size()) + 1;
  Classifier classifier(options, largest_part);

  trainer::ProgressBar bar;
  trainer::EarlyStopping early(
      {.monitor = "val_accuracy", .mode = trainer::Mode::max, .patience = size(options.patience)});
  trainer::JsonLogger logger(options.common.json);
  trainer::TrainerOptions settings{.max_epochs = size(options.epochs),
                                   .accumulate_batches = size(options.accumulate_batches),
                                   .log_every = size(options.log_every),
                                   .hyperparameters = {{"--seed", options.common.seed},
                                                       {"--batch-size", options.batch_size},
                                                       {"--accumulate-batches", options.accumulate_batches},
                                                       {"--learning-rate", options.learning_rate}},
                                   .callbacks = {&bar, &early, &logger}};
  if (options.steps > 0) settings.max_steps = size(options.steps);
  std::optional<trainer::ModelCheckpoint> checkpoints;
  if (!options.checkpoint.empty()) {
    checkpoints.emplace(world, trainer::ModelCheckpointOptions{.folder = options.checkpoint,
                                                               .monitor = "val_accuracy",
                                                               .mode = trainer::Mode::max,
                                                               .every_steps = size(options.checkpoint_every)});
    settings.callbacks.push_back(&*checkpoints);
  }
  trainer::Trainer trainer(world, *communicator, settings);
  trainer.fit(classifier, clothes, checkpoints ? checkpoints->newest() : std::nullopt);

  const double accuracy = 100 * trainer.validate(classifier, clothes).at("val_accuracy");
  const std::vector<std::string> hashes = ddp::hashes_of_ranks(world, trainer.parameters());
  const bool identical = std::ranges::count(hashes, hashes[0]) == world.size();
  const bool right = identical && accuracy >= options.min_accuracy;
  logger.write({{"right", right}, {"accuracy", accuracy}, {"parameters", hashes[0]}, {"identical", identical}});
  if (world.rank() == 0)
    std::cout << "parameters: " << hashes[0] << (identical ? " on every rank" : " on rank 0, others elsewhere") << "\n"
              << (right ? "RIGHT" : "WRONG") << ": test accuracy " << accuracy << " %, at least "
              << options.min_accuracy << " % wanted" << std::endl;
  return right ? multinode::exit_right : multinode::exit_wrong;
}

multinode::Program Options::program() {
  namespace po = boost::program_options;
  po::options_description known("Options of trainer_style");
  known.add_options()                                                                                                //
      ("data", po::value(&folder)->default_value(folder)->value_name("DIR"), "folder with the four IDX files")       //
      ("epochs", po::value(&epochs)->default_value(epochs), "maximum number of passes over all images")              //
      ("steps", po::value(&steps)->default_value(steps), "stop after this many steps; 0: no limit")                  //
      ("batch-size", po::value(&batch_size)->default_value(batch_size), "images per batch, of all ranks together")   //
      ("accumulate-batches", po::value(&accumulate_batches)->default_value(accumulate_batches), "batches per step")  //
      ("learning-rate", po::value(&learning_rate)->default_value(learning_rate), "of Adam")                          //
      ("patience", po::value(&patience)->default_value(patience),
       "stop after this many epochs without a better test accuracy")                                       //
      ("log-every", po::value(&log_every)->default_value(log_every), "steps between two lines of output")  //
      ("checkpoint", po::value(&checkpoint)->value_name("DIR"),
       "write checkpoints to this folder, and resume from the newest one in it")  //
      ("checkpoint-every", po::value(&checkpoint_every)->default_value(checkpoint_every),
       "steps between two checkpoints, in addition to one after each epoch; 0: only those")  //
      ("min-accuracy", po::value(&min_accuracy)->default_value(min_accuracy),
       "exit with 1 below this test accuracy, in %");
  return {"trainer_style", known, common, [this] {
            using multinode::require_range;
            require_range<std::int64_t>("--epochs", epochs, 1, 100'000);
            require_range<std::int64_t>("--batch-size", batch_size, 1, 1'000'000);
            require_range<std::int64_t>("--accumulate-batches", accumulate_batches, 1, 1'000'000);
            require_range<std::int64_t>("--patience", patience, 1, 100'000);
            require_range<std::int64_t>("--log-every", log_every, 1, 1'000'000'000);
            require_range<std::int64_t>("--steps", steps, 0, 1'000'000'000);
            require_range<std::int64_t>("--checkpoint-every", checkpoint_every, 0, 1'000'000'000);
            if (checkpoint_every > 0 && checkpoint.empty())
              throw multinode::UsageError("--checkpoint-every needs --checkpoint DIR");
            require_range("--learning-rate", learning_rate, 0.0, 1e6);
            require_range("--min-accuracy", min_accuracy, 0.0, 100.0);
            if (multinode::parse_backend(common.backend) == multinode::Backend::nccl)
              throw multinode::UsageError("--backend nccl: this program trains on the CPU; use --backend mpi or gloo");
          }};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
