// trainer_style: fashion_mnist's training in the manner of PyTorch Lightning: a module, and a Trainer with callbacks.
// Exit status: 0 all ranks have the same parameters and the accuracy is high enough; 1 not, failed or timed out; 2 bad
// command line or environment; 77 no GPU for --backend nccl.
#include "data/fashion_mnist.hpp"
#include "data/loader.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "on_device.hpp"
#include "progress.hpp"
#include "trainer.hpp"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace {

using Batch = data::Batch<float>;

constexpr std::size_t test_batch = 1000;

std::size_t size(std::int64_t option) { return static_cast<std::size_t>(option); }

struct Options {
  multinode::CommonOptions common;
  std::string folder = data::default_folder, checkpoint;
  std::int64_t epochs = 5, steps = 0, batch_size = 128, patience = 3, log_every = 100, checkpoint_every = 0;
  double learning_rate = 0.001, min_accuracy = 80;

  multinode::Program program();
};

template <class Model>
class Classifier : public trainer::Module {
 public:
  Classifier(multinode::World& world, multinode::Communicator& communicator, const Options& options)
      : world_(world),
        communicator_(communicator),
        learning_rate_(options.learning_rate),
        seed_(options.common.seed),
        images_(data::read_fashion_mnist(options.folder)),
        train_(images_.train.size(), size(options.batch_size), world.rank(), world.size(), seed_),
        test_(images_.test.size(), test_batch, world.rank(), world.size(), 0, ddp::Remainder::smaller, false),
        network_({.sizes = {data::image_bytes, 512, 512, data::classes}},
                 (std::max(size(options.batch_size), test_batch) - 1) / size(world.size()) + 1),
        optimizer_(network_.parameters()),
        reducer_(communicator, network_.parameters(), network_.gradient_storage(), {},
                 gradient_memory(world, communicator, network_)),
        kept_(network_, blocks()) {
    start_training(world, communicator, network_, reducer_, seed_);
  }

  Model& network() { return network_; }
  const ddp::Reducer<float>& reducer() const { return reducer_; }

  const std::vector<ddp::NamedBlock>& state() override { return kept_.fetch(); }
  ddp::Restored restore(const std::vector<std::filesystem::path>& newest_first,
                        const nlohmann::json& hyperparameters) override {
    return kept_.load(world_, communicator_, newest_first, hyperparameters);
  }
  std::size_t steps() const override { return train_.steps(); }
  void begin_epoch(std::size_t epoch, std::size_t first) override {
    batches_.reset();  // it reads the sampler
    train_.set_epoch(static_cast<std::uint32_t>(epoch));
    step_ = (epoch - 1) * steps() + first;
    batches_.emplace(first, steps(), [this](std::size_t step, Batch& batch) {
      data::gather(images_.train, train_.local_batch(step), batch);
    });
  }
  void training_step(std::size_t step) override {
    Batch& batch = batches_->next();
    const model::Dropout dropout{0.25, seed_, static_cast<std::uint32_t>(step_++)};
    train_step(network_, optimizer_, reducer_, batch, train_.global_batch(step).size(), dropout, learning_rate_);
    losses_.samples += static_cast<double>(batch.size());
  }
  trainer::Sums take_losses() override {
    losses_.loss += take_loss(world_, communicator_, network_);
    double sums[] = {losses_.loss, losses_.samples};
    losses_ = {};
    sum_over_ranks(communicator_, network_, sums);
    return {sums[0], sums[1]};
  }
  trainer::Metrics validate() override {
    losses_.loss += take_loss(world_, communicator_, network_);  // of the training
    for (std::size_t step = 0; step < test_.steps(); ++step) {
      data::gather(images_.test, test_.local_batch(step), test_images_);
      network_.forward(test_images_, {});
    }
    const model::Totals totals = network_.take_totals();
    double sums[] = {totals.loss, static_cast<double>(totals.right)};
    sum_over_ranks(communicator_, network_, sums);
    const auto samples = static_cast<double>(images_.test.size());
    return {{"val_loss", sums[0] / samples}, {"val_accuracy", sums[1] / samples}};
  }

 private:
  std::vector<ddp::NamedBlock> blocks() {
    std::vector<ddp::NamedBlock> blocks = network_.parameters();
    for (ddp::NamedBlock& block : optimizer_.state()) blocks.push_back(std::move(block));
    return blocks;
  }

  multinode::World& world_;
  multinode::Communicator& communicator_;
  double learning_rate_;
  std::uint64_t seed_;
  data::FashionMnist images_;
  ddp::DistributedSampler train_, test_;
  Batch test_images_;
  Model network_;
  typename Model::Adam optimizer_;
  ddp::Reducer<float> reducer_;
  CheckpointBlocks<Model> kept_;
  std::optional<data::Loader<Batch>> batches_;
  std::size_t step_ = 0;  // of all epochs
  trainer::Sums losses_;  // of this rank
};

// Shows where the training is, and writes --json.
class Log : public trainer::Callback {
 public:
  Log(const multinode::World& world, multinode::JsonLines& json) : progress_(world.rank() == 0), json_(json) {}
  void on_fit_begin(trainer::Trainer& trainer) override {
    if (trainer.step() > 0)
      progress_.line("resumes from " + trainer.resumed().string() + fmt::format(", after step {}", trainer.step()));
  }
  void on_log(trainer::Trainer& trainer) override {
    const double loss = trainer.metric("train_loss_step");
    const std::size_t steps = trainer.steps_of_epoch(), step = (trainer.step() - 1) % steps + 1;
    progress_.step(static_cast<int>(trainer.epochs() + 1), step, steps, fmt::format(": train_loss_step {:.4g}", loss),
                   step < steps);
    json_.write({{"epoch", trainer.epochs() + 1}, {"step", trainer.step()}, {"train_loss_step", loss}});
  }
  void on_epoch_end(trainer::Trainer& trainer) override {
    std::string line;
    nlohmann::json object{{"epoch", trainer.epochs()}, {"step", trainer.step()}};
    for (const auto& [name, value] : trainer.metrics()) {
      if (name == "train_loss_step") continue;
      line += (line.empty() ? " " : ", ") + name + fmt::format(" {:.4g}", value);
      object[name] = value;
    }
    progress_.line(fmt::format("epoch {}:", trainer.epochs()) + line);
    json_.write(object);
  }
  void on_fit_end(trainer::Trainer& trainer) override {
    if (!trainer.stopped().empty()) progress_.line("stopped: " + trainer.stopped());
  }
  void line(const std::string& text) { progress_.line(text); }

 private:
  Progress progress_;
  multinode::JsonLines& json_;
};

template <class Model>
int train(multinode::World& world, multinode::Communicator& communicator, const Options& options) {
  Classifier<Model> classifier(world, communicator, options);
  std::optional<trainer::ModelCheckpoint> checkpoints;
  if (!options.checkpoint.empty())
    checkpoints.emplace(world, options.checkpoint, trainer::Best{"val_accuracy", true}, size(options.checkpoint_every));
  const auto newest = checkpoints ? checkpoints->newest() : std::vector<std::filesystem::path>();
  multinode::JsonLines json(world.rank() == 0 ? options.common.json : "", !newest.empty());
  if (world.rank() == 0) json.write(multinode::fingerprint(world));
  Log log(world, json);
  trainer::EarlyStopping early({"val_accuracy", true}, size(options.patience));

  trainer::TrainerOptions settings{.max_epochs = size(options.epochs),
                                   .log_every = size(options.log_every),
                                   .hyperparameters = {{"program", "trainer_style"},
                                                       {"--seed", options.common.seed},
                                                       {"--batch-size", options.batch_size},
                                                       {"--learning-rate", options.learning_rate}},
                                   .callbacks = {&log, &early}};
  if (options.steps > 0) settings.max_steps = size(options.steps);
  if (checkpoints) settings.callbacks.push_back(&*checkpoints);
  trainer::Trainer trainer(world, settings);
  log.line(summary(classifier.reducer(), world, communicator));
  trainer.fit(classifier, newest);

  const double accuracy = 100 * classifier.validate().at("val_accuracy");
  const std::vector<std::string> hashes = parameter_hashes(world, classifier.network());
  const bool identical = std::ranges::count(hashes, hashes[0]) == world.size();
  const bool right = identical && accuracy >= options.min_accuracy;
  json.write({{"right", right}, {"accuracy", accuracy}, {"parameters", hashes[0]}, {"identical", identical}});
  log.line("parameters: " + hashes[0] + (identical ? " on every rank" : " on rank 0, others elsewhere"));
  log.line((right ? "RIGHT" : "WRONG") +
           fmt::format(": test accuracy {:.2f} %, at least {:g} % wanted", accuracy, options.min_accuracy));
  return right ? multinode::exit_right : multinode::exit_wrong;
}

int run(multinode::World& world, const Options& options) {
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  return with_perceptron<float>(*communicator,
                                [&]<class Model>() { return train<Model>(world, *communicator, options); });
}

multinode::Program Options::program() {
  namespace po = boost::program_options;
  po::options_description known("Options of trainer_style");
  known.add_options()                                                                                              //
      ("data", po::value(&folder)->default_value(folder)->value_name("DIR"), "folder with the four IDX files")     //
      ("epochs", po::value(&epochs)->default_value(epochs), "maximum number of passes over all images")            //
      ("steps", po::value(&steps)->default_value(steps), "stop after this many steps; 0: no limit")                //
      ("batch-size", po::value(&batch_size)->default_value(batch_size), "images per step, of all ranks together")  //
      ("learning-rate", po::value(&learning_rate)->default_value(learning_rate), "of Adam")                        //
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
            require_range<std::int64_t>("--patience", patience, 1, 100'000);
            require_range<std::int64_t>("--log-every", log_every, 1, 1'000'000'000);
            require_range<std::int64_t>("--steps", steps, 0, 1'000'000'000);
            require_range<std::int64_t>("--checkpoint-every", checkpoint_every, 0, 1'000'000'000);
            if (checkpoint_every > 0 && checkpoint.empty())
              throw multinode::UsageError("--checkpoint-every needs --checkpoint DIR");
            require_range("--learning-rate", learning_rate, 0.0, 1e6);
            require_range("--min-accuracy", min_accuracy, 0.0, 100.0);
            multinode::parse_backend(common.backend);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
