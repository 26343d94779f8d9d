// fashion_mnist: trains a perceptron to classify images of clothes; each rank has a part of every batch. The training
// step is in train_step.hpp, and for GPUs in on_device.hpp. Exit status: 0 all ranks have the same parameters and
// the accuracy is high enough; 1 not, failed or timed out; 2 bad command line or environment; 77 no GPU for --backend
// nccl.
#include "data/fashion_mnist.hpp"
#include "data/loader.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/recorder.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "on_device.hpp"
#include "progress.hpp"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace {

constexpr int no_rank = -1;
constexpr std::size_t kept_checkpoints = 2;
constexpr std::size_t nan_step = 5;
constexpr std::size_t steps_between_looks = 10;

// SIGUSR1 has come: the time of this job is nearly over. A signal handler may touch nothing else.
volatile std::sig_atomic_t save_asked = 0;

struct Options {
  multinode::CommonOptions common;
  std::string folder = data::default_folder;
  int epochs = 3;
  std::int64_t batch_size = 128;
  double learning_rate = 0.05;
  double momentum = 0.9;
  double dropout = 0.25;
  std::string precision = "float";
  bool cuda_graph = false;
  bool output_relu = false;
  std::string checkpoint;
  std::int64_t checkpoint_every = 0;
  std::int64_t steps = 0;
  std::int64_t log_every = 100;
  double min_accuracy = -1;
  bool no_average = false;
  int corrupt = no_rank;
  int nan = no_rank;
  ddp::RecorderOptions recorder;

  multinode::Program program();
  void validate() const;
  // What a training that is resumed cannot change: the result would be that of neither.
  nlohmann::json settled(std::size_t images) const;
};

std::size_t count(std::int64_t number) { return static_cast<std::size_t>(number); }

template <class Model>
class Training {
  using T = typename Model::value_type;
  using Batch = data::Batch<T>;
  using Sums = std::array<double, 2>;  // of losses, and of the samples that they are of

 public:
  Training(multinode::World& world, multinode::Communicator& communicator, const Options& options,
           const data::FashionMnist& images)
      : world_(world),
        communicator_(communicator),
        options_(options),
        images_(images),
        sampler_(images.train.size(), count(options.batch_size), world.rank(), world.size(), options.common.seed),
        capacity_(std::max<std::size_t>(
            (std::min(count(options.batch_size), images.train.size()) - 1) / count(world.size()) + 1, 250)),
        planned_(count(options.epochs) * sampler_.steps()),
        last_(options.steps > 0 ? std::min(planned_, count(options.steps)) : planned_),
        model_({.sizes = {data::image_bytes, 512, 512, data::classes},
                .output_relu = options.output_relu,
                .tf32 = options.precision == "tf32"},
               capacity_),
        optimizer_(model_.parameters(), options.momentum),
        reducer_(communicator, model_.parameters(), model_.gradient_storage(), {},
                 gradient_memory(world, communicator, model_)),
        kept_(model_, blocks_to_keep()),
        resumed_(start()),
        recorder_(world, communicator, options.recorder),
        progress_(world.rank() == 0),
        json_(world.rank() == 0 ? options.common.json : "", !resumed_.empty()) {}

  // Returns the exit status.
  int run() {
    if (world_.rank() == 0) json_.write(multinode::fingerprint(world_));
    progress_.line(
        fmt::format("{} images to learn from, {} to test with; ", images_.train.size(), images_.test.size()) +
        summary(reducer_, world_, communicator_));
    if (!resumed_.empty())
      progress_.line("goes on from " + resumed_.string() + fmt::format(", after step {} of {}", step_, planned_));

    double accuracy = step_ < last_ ? 0 : evaluate();
    while (step_ < last_) accuracy = train_epoch();
    if (folder_) folder_->wait();
    report_checkpoint();
    recorder_.report(std::cout, json_);
    return verdict(accuracy);
  }

 private:
  // All ranks start from rank 0's parameters, or from what its newest checkpoint holds: returns that one's path there.
  std::filesystem::path start() {
    start_training(world_, communicator_, model_, reducer_, options_.common.seed);
    if (world_.rank() == options_.corrupt) model_.initialize(options_.common.seed + 1);

    if (world_.rank() == 0 && !options_.checkpoint.empty())
      folder_.emplace(options_.checkpoint, kept_checkpoints, &world_.watchdog());
    std::vector<std::filesystem::path> newest_first;
    if (folder_) newest_first = folder_->newest_first();
    const auto [state, path] = kept_.load(world_, communicator_, newest_first, options_.settled(images_.train.size()));
    if (state.is_null()) return {};
    state.at("step").get_to(step_);
    state.at("epoch_sums").get_to(epoch_sums_);
    if (world_.rank() == 0) state.at("line_sums").get_to(line_sums_);  // the sum of all ranks'
    return path;
  }

  // The epoch that step_ is in, from there to its end or the last step. Returns the test accuracy in %.
  double train_epoch() {
    const std::size_t epoch = step_ / sampler_.steps() + 1;
    const std::size_t first = step_ % sampler_.steps(), end = std::min(sampler_.steps(), first + last_ - step_);
    const std::size_t log_every = count(options_.log_every), checkpoint_every = count(options_.checkpoint_every);
    const auto begin = std::chrono::steady_clock::now();
    sampler_.set_epoch(static_cast<std::uint32_t>(epoch));
    data::Loader<Batch> batches(first, end, [this](std::size_t s, Batch& batch) {
      data::gather(images_.train, sampler_.local_batch(s), batch);
    });
    std::size_t samples = 0;
    for (std::size_t s = first; s < end; ++s) {
      const std::size_t all = sampler_.global_batch(s).size();
      train(batches.next(), all);
      samples += all;
      const bool ends = s + 1 == end;
      if ((s + 1) % log_every == 0 || ends) {
        const double loss = take_loss_of_line();
        progress_.step(static_cast<int>(epoch), s + 1, sampler_.steps(), fmt::format(": loss {:.4f}", loss),
                       !ends || log_every == 1);
      }
      const bool due = checkpoint_every > 0 && step_ % checkpoint_every == 0;
      if (!ends && (due || save_is_asked())) write_checkpoint();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

    const double accuracy = evaluate();
    const double loss = epoch_sums_[0] / epoch_sums_[1], speed = static_cast<double>(samples) / seconds.count();
    progress_.line(fmt::format("epoch {}: loss {:.4f}, test accuracy {:.2f} %, {:.2f} s, {:.0f} samples/s", epoch, loss,
                               accuracy, seconds.count(), speed));
    if (world_.rank() == 0)
      json_.write({{"epoch", epoch},
                   {"steps", step_},
                   {"loss", loss},
                   {"accuracy", accuracy},
                   {"seconds", seconds.count()},
                   {"samples_per_second", speed}});
    if (end == sampler_.steps()) epoch_sums_ = {};
    if (checkpoint_every == 0 || step_ % checkpoint_every == 0 || step_ == last_) write_checkpoint();
    return accuracy;
  }

  // One step; `all` is the number of images in the whole batch, of which `mine` is this rank's part.
  void train(Batch& mine, std::size_t all) {
    const double rate = options_.learning_rate * (1 - static_cast<double>(step_) / static_cast<double>(planned_));
    const std::size_t divisor = options_.no_average ? 1 : all;
    const model::Dropout dropout{options_.dropout, options_.common.seed, static_cast<std::uint32_t>(step_)};
    const bool spoilt = world_.rank() == options_.nan && step_ + 1 == nan_step;
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
#ifdef DDP_ON_GPU
    if constexpr (on_gpu<Model>) {
      if (spoilt) mine.inputs.at(0) = nan;
      train_step(model_, optimizer_, reducer_, mine, divisor, dropout, rate, {},
                 options_.cuda_graph ? &graphs_ : nullptr, all);
    } else
#endif
    {
      const auto spoil = [&](std::size_t parameter) {
        if (spoilt && parameter == 0) reducer_.gradient(parameter)[0] = nan;
      };
      train_step(model_, optimizer_, reducer_, mine, divisor, dropout, rate,
                 {.complete = spoil, .observe = recorder_.observer()});
    }
    line_sums_[1] += static_cast<double>(mine.size());
    ++step_;
    report_checkpoint();
  }

  // The mean over all ranks' images since the last line, which are added to the epoch's.
  double take_loss_of_line() {
    line_sums_[0] += take_loss(world_, communicator_, model_);
    sum_over_ranks(communicator_, model_, line_sums_);
    const Sums sums = std::exchange(line_sums_, {});
    for (std::size_t i : {0u, 1u}) epoch_sums_[i] += sums[i];
    return sums[0] / sums[1];
  }

  // Test accuracy in %: each rank looks at its part of the images.
  double evaluate() {
    const ddp::Range mine = ddp::part_of(images_.test.size(), count(world_.rank()), count(world_.size()));
    Batch batch;
    for (std::size_t begin = mine.begin; begin < mine.end; begin += capacity_) {
      std::vector<std::uint32_t> samples(std::min(capacity_, mine.end - begin));
      std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(begin));
      data::gather(images_.test, samples, batch);
      model_.forward(batch, {});
    }
    double right = static_cast<double>(model_.take_totals().right);
    sum_over_ranks(communicator_, model_, {&right, 1});
    return 100 * right / static_cast<double>(images_.test.size());
  }

  // Whether a rank has had SIGUSR1. All ranks have to do the same, so they look together, and not in every step.
  bool save_is_asked() {
    if (options_.checkpoint.empty() || step_ % steps_between_looks != 0) return false;
    double ranks = save_asked;
    sum_over_ranks(communicator_, model_, {&ranks, 1});
    return ranks > 0;
  }

  // Random numbers are functions of seed and step: beside the blocks, two numbers and the sums are all the state.
  void write_checkpoint() {
    if (options_.checkpoint.empty()) return;
    save_asked = 0;
    line_sums_[0] += take_loss(world_, communicator_, model_);
    Sums sums = line_sums_;
    sum_over_ranks(communicator_, model_, sums);
    if (!folder_) return;
    nlohmann::json state = options_.settled(images_.train.size());
    state.update({{"program", "fashion_mnist"}, {"step", step_}, {"epoch_sums", epoch_sums_}, {"line_sums", sums}});
    folder_->start_write(step_, std::move(state), kept_.fetch());
  }

  // So that whoever starts this program again knows from where it will go on.
  void report_checkpoint() {
    if (!folder_) return;
    if (const auto written = folder_->take_written())
      json_.write({{"checkpoint", std::filesystem::absolute(*written).string()}});
  }

  // Right is who has the same parameters on all ranks, and learnt enough.
  int verdict(double accuracy) {
    const std::vector<std::string> hashes = parameter_hashes(world_, model_);
    const bool identical = std::ranges::count(hashes, hashes[0]) == world_.size();
    const double wanted = options_.min_accuracy >= 0 ? options_.min_accuracy : last_ >= 3 * sampler_.steps() ? 86 : 0;
    const bool right = identical && accuracy >= wanted;
    if (identical)
      progress_.line("parameters: " + hashes[0] + " on every rank");
    else
      for (std::size_t r = 0; r < hashes.size(); ++r)
        progress_.line("parameters: " + hashes[r] + " on rank " + std::to_string(r));
    progress_.line((right ? "RIGHT: " : "WRONG: ") + fmt::format("test accuracy {:.2f} %", accuracy) +
                   (wanted > 0 ? fmt::format(", at least {:g} % wanted", wanted) : "") +
                   (identical ? "" : "; the ranks' parameters differ"));
    if (world_.rank() == 0)
      json_.write({{"right", right}, {"accuracy", accuracy}, {"parameters", hashes[0]}, {"identical", identical}});
    return right ? multinode::exit_right : multinode::exit_wrong;
  }

  // Parameters, and what the optimizer remembers.
  std::vector<ddp::NamedBlock> blocks_to_keep() {
    std::vector<ddp::NamedBlock> blocks = model_.parameters();
    for (const ddp::NamedBlock& block : optimizer_.state()) blocks.push_back(block);
    return blocks;
  }

  multinode::World& world_;
  multinode::Communicator& communicator_;
  const Options& options_;
  const data::FashionMnist& images_;

  ddp::DistributedSampler sampler_;
  std::size_t capacity_;             // samples that the model takes at once
  std::size_t planned_, last_;       // steps of all epochs; those after which this run ends
  std::size_t step_ = 0;             // steps so far, of all epochs
  Sums epoch_sums_{}, line_sums_{};  // of the epoch up to its last line, of all ranks; since then, of this one

  Model model_;
  typename Model::Sgd optimizer_;
#ifdef DDP_ON_GPU
  model::StepGraphs graphs_;
#endif
  ddp::Reducer<T> reducer_;
  CheckpointBlocks<Model> kept_;
  std::optional<ddp::CheckpointFolder> folder_;  // rank 0's
  std::filesystem::path resumed_;                // rank 0's: what this run goes on from; empty: none
  ddp::Recorder recorder_;
  Progress progress_;
  multinode::JsonLines json_;
};

int run(multinode::World& world, const Options& options) {
  if (!options.checkpoint.empty()) std::signal(SIGUSR1, [](int) { save_asked = 1; });
  if (options.corrupt != no_rank) multinode::require_range("--corrupt", options.corrupt, 0, world.size() - 1);
  if (options.nan != no_rank) multinode::require_range("--nan", options.nan, 0, world.size() - 1);
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  if (communicator->backend() != multinode::Backend::nccl &&
      (options.precision == "bfloat16" || options.precision == "tf32" || options.cuda_graph))
    throw multinode::UsageError(
        "--precision bfloat16, --precision tf32 and --cuda-graph: only on GPUs, with --backend nccl");
  const data::FashionMnist images = data::read_fashion_mnist(options.folder);
  const auto train = [&]<class Model>() { return Training<Model>(world, *communicator, options, images).run(); };
#ifdef DDP_ON_GPU
  if (options.precision == "bfloat16") return train.operator()<model::PerceptronGpu<float, __nv_bfloat16>>();
#endif
  return options.precision == "double" ? with_perceptron<double>(*communicator, train)
                                       : with_perceptron<float>(*communicator, train);
}

multinode::Program Options::program() {
  namespace po = boost::program_options;
  po::options_description known("Options of fashion_mnist");
  known.add_options()                                                                                              //
      ("data", po::value(&folder)->default_value(folder)->value_name("DIR"), "folder with the four IDX files")     //
      ("epochs", po::value(&epochs)->default_value(epochs), "passes over all images")                              //
      ("batch-size", po::value(&batch_size)->default_value(batch_size), "images per step, of all ranks together")  //
      ("learning-rate", po::value(&learning_rate)->default_value(learning_rate),
       "at the start; it falls linearly to 0")                                                                    //
      ("momentum", po::value(&momentum)->default_value(momentum), "of stochastic gradient descent")               //
      ("dropout", po::value(&dropout)->default_value(dropout), "fraction of the hidden units that are left out")  //
      ("precision", po::value(&precision)->default_value(precision),
       "float or double; on GPUs also tf32 or bfloat16 for products, while parameters and sums stay float")  //
      ("cuda-graph", po::bool_switch(&cuda_graph), "on GPUs: record a step as a CUDA graph, and replay it")  //
      ("relu-on-output", po::bool_switch(&output_relu),
       "a ReLU on the output layer, as in the tutorial; it learns more slowly")  //
      ("checkpoint", po::value(&checkpoint)->value_name("DIR"),
       "write checkpoints to this folder, also at SIGUSR1, and resume from the newest one in it")  //
      ("checkpoint-every", po::value(&checkpoint_every)->default_value(checkpoint_every),
       "steps between two checkpoints; 0: one after each epoch")                                           //
      ("steps", po::value(&steps)->default_value(steps), "stop after this many steps; 0: no limit")        //
      ("log-every", po::value(&log_every)->default_value(log_every), "steps between two lines of output")  //
      ("min-accuracy", po::value(&min_accuracy),
       "exit with 1 below this test accuracy, in % (default: 86 after 3 epochs or more, else 0)")            //
      ("no-average", po::bool_switch(&no_average), "plant a fault: do not divide the sum of the gradients")  //
      ("corrupt", po::value(&corrupt), "plant a fault: this rank starts with parameters of its own")         //
      ("nan", po::value(&nan), "plant a fault: a gradient of this rank is NaN in step 5");
  recorder.add_to(known);
  return {"fashion_mnist", known, common, [this] { validate(); }};
}

void Options::validate() const {
  using multinode::require_range;
  require_range("--epochs", epochs, 1, 100'000);
  require_range<std::int64_t>("--batch-size", batch_size, 1, 1'000'000);
  require_range("--learning-rate", learning_rate, 0.0, 1e6);
  require_range("--momentum", momentum, 0.0, 0.9999);
  require_range("--dropout", dropout, 0.0, 0.99);
  if (precision != "float" && precision != "double" && precision != "tf32" && precision != "bfloat16")
    throw multinode::UsageError("--precision must be float, double, tf32 or bfloat16, not '" + precision + "'");
  require_range<std::int64_t>("--checkpoint-every", checkpoint_every, 0, 1'000'000'000);
  if (checkpoint_every > 0 && checkpoint.empty())
    throw multinode::UsageError("--checkpoint-every needs --checkpoint DIR");
  require_range<std::int64_t>("--steps", steps, 0, 1'000'000'000);
  require_range<std::int64_t>("--log-every", log_every, 1, 1'000'000'000);
  if (min_accuracy != -1) require_range("--min-accuracy", min_accuracy, 0.0, 100.0);
  multinode::parse_backend(common.backend);
}

nlohmann::json Options::settled(std::size_t images) const {
  return {{"--batch-size", batch_size},       {"--dropout", dropout},   {"--epochs", epochs},
          {"--learning-rate", learning_rate}, {"--momentum", momentum}, {"--precision", precision},
          {"--relu-on-output", output_relu},  {"--seed", common.seed},  {"--data of as many images as", images}};
}
}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
