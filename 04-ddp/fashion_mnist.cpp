// fashion_mnist: trains a perceptron to tell clothes apart, the images shared out over all ranks.
// Exit status: 0 all ranks have the same parameters and the accuracy is reached, 1 not so, failed or timed out, 2 bad
// command line or environment, 77 no GPU for --backend nccl.
#include "data/fashion_mnist.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/recorder.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "progress.hpp"
#include "train_step.hpp"
#ifdef MULTINODE_HAVE_NCCL
#include "ddp/gradient_memory_gpu.hpp"
#include "train_step_gpu.hpp"
#endif

#include <multinode/program.hpp>
#include <multinode/report.hpp>

#include <boost/program_options.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace {

constexpr int no_rank = -1;
constexpr std::size_t kept_checkpoints = 2;
constexpr std::size_t nan_step = 5;

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

  multinode::Program program() {
    namespace po = boost::program_options;
    po::options_description known("Options of fashion_mnist");
    known.add_options()                                                                                               //
        ("data", po::value(&folder)->default_value(folder)->value_name("DIR"), "folder with the four IDX files")      //
        ("epochs", po::value(&epochs)->default_value(epochs), "times that each image is learned from")                //
        ("batch-size", po::value(&batch_size)->default_value(batch_size), "images in a step, of all ranks together")  //
        ("learning-rate", po::value(&learning_rate)->default_value(learning_rate),
         "at the start; it falls to 0 in a straight line")                                             //
        ("momentum", po::value(&momentum)->default_value(momentum), "of the gradient descent")         //
        ("dropout", po::value(&dropout)->default_value(dropout), "part of the hidden units left out")  //
        ("precision", po::value(&precision)->default_value(precision),
         "float or double; on GPUs also bfloat16: of what is multiplied, while parameters and sums stay float")  //
        ("cuda-graph", po::bool_switch(&cuda_graph), "on GPUs: record a step once, and repeat it as a whole")    //
        ("relu-on-output", po::bool_switch(&output_relu), "as the tutorial's network has it: it learns less")    //
        ("checkpoint", po::value(&checkpoint)->value_name("DIR"),
         "write checkpoints there, and go on from the newest that is there")  //
        ("checkpoint-every", po::value(&checkpoint_every)->default_value(checkpoint_every),
         "steps between two checkpoints; 0: one after each epoch")                                 //
        ("steps", po::value(&steps)->default_value(steps), "stop after so many; 0: do not")        //
        ("log-every", po::value(&log_every)->default_value(log_every), "steps between two lines")  //
        ("min-accuracy", po::value(&min_accuracy),
         "test accuracy in % below which the run has failed (default: 86 after 3 epochs or more, else 0)")           //
        ("no-average", po::bool_switch(&no_average), "a fault to look at: sum the gradients, and leave it at that")  //
        ("corrupt", po::value(&corrupt), "a fault to look at: this rank starts from parameters of its own")          //
        ("nan", po::value(&nan), "a fault to look at: a gradient of this rank is no number in step 5");
    recorder.add_to(known);
    return {"fashion_mnist", known, common, [this] { validate(); }};
  }

  void validate() {
    using multinode::require_range;
    require_range("--epochs", epochs, 1, 100'000);
    require_range<std::int64_t>("--batch-size", batch_size, 1, 1'000'000);
    require_range("--learning-rate", learning_rate, 0.0, 1e6);
    require_range("--momentum", momentum, 0.0, 0.9999);
    require_range("--dropout", dropout, 0.0, 0.99);
    if (precision != "float" && precision != "double" && precision != "bfloat16")
      throw multinode::UsageError("--precision must be float, double or bfloat16, not '" + precision + "'");
    require_range<std::int64_t>("--checkpoint-every", checkpoint_every, 0, 1'000'000'000);
    if (checkpoint_every > 0 && checkpoint.empty())
      throw multinode::UsageError("--checkpoint-every says how often; --checkpoint DIR must say where to");
    require_range<std::int64_t>("--steps", steps, 0, 1'000'000'000);
    require_range<std::int64_t>("--log-every", log_every, 1, 1'000'000'000);
    if (min_accuracy != -1) require_range("--min-accuracy", min_accuracy, 0.0, 100.0);
    multinode::parse_backend(common.backend);
  }

  // What a training that is resumed cannot change: the result would be that of neither.
  nlohmann::json settled(std::size_t images) const {
    return {{"--batch-size", batch_size},       {"--dropout", dropout},   {"--epochs", epochs},
            {"--learning-rate", learning_rate}, {"--momentum", momentum}, {"--precision", precision},
            {"--relu-on-output", output_relu},  {"--seed", common.seed},  {"--data of as many images as", images}};
  }
};

template <class... Values>
std::string text(const char* format, Values... values) {
  char line[200];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

template <class Model>
constexpr bool on_gpu = requires(Model& model) {
  model.stream();
};

// Test accuracy in %: each rank looks at its part of the images.
template <class Model>
double evaluate(multinode::Communicator& communicator, Model& model, const data::Images& images, std::size_t capacity) {
  const ddp::Range mine = ddp::part_of(images.size(), static_cast<std::size_t>(communicator.rank()),
                                       static_cast<std::size_t>(communicator.size()));
  double right = 0;
  data::Batch<typename Model::value_type> batch;
  for (std::size_t begin = mine.begin; begin < mine.end; begin += capacity) {
    std::vector<std::uint32_t> samples(std::min(capacity, mine.end - begin));
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(begin));
    data::gather(images, samples, batch);
    if constexpr (on_gpu<Model>) {
      model.load(batch, {}, 0);
      model.forward();
    } else {
      right += static_cast<double>(model.forward(batch, {}).right);
    }
  }
  if constexpr (on_gpu<Model>) right = static_cast<double>(model.take_totals().right);
  sum_over_ranks(communicator, model, {&right, 1});
  return 100 * right / static_cast<double>(images.size());
}

template <class Model>
int train(multinode::World& world, const Options& options, multinode::Communicator& communicator,
          const data::FashionMnist& images) {
  using T = typename Model::value_type;
  using Clock = std::chrono::steady_clock;
  const int rank = world.rank();
  const auto size = static_cast<std::size_t>(world.size());
  const auto batch_size = static_cast<std::size_t>(options.batch_size);
  const std::uint64_t seed = options.common.seed;

  ddp::DistributedSampler sampler(images.train.size(), batch_size, rank, world.size(), seed);
  const std::size_t capacity =
      std::max<std::size_t>((std::min(batch_size, images.train.size()) + size - 1) / size, 250);
  Model model({.sizes = {data::image_bytes, 512, 512, data::classes}, .output_relu = options.output_relu}, capacity);
  typename Model::Sgd optimizer(model.parameters(), options.momentum);
  std::unique_ptr<ddp::GradientMemory<T>> memory;
#ifdef MULTINODE_HAVE_NCCL
  model::StepGraphs graphs;
  if constexpr (on_gpu<Model>) {
    communicator.set_stream(model.stream());
    model.set_wait([&world](cudaEvent_t event) {  // within the deadline
      const auto inside = world.watchdog().enter("wait for the GPU");
      multinode::check(cudaEventSynchronize(event));
    });
    memory = std::make_unique<ddp::GradientMemoryGpu<T>>(model.stream());
  }
#endif
  ddp::Reducer<T> reducer(world, communicator, model.parameters(), model.gradient_storage(), {}, std::move(memory));
  connect(model, reducer);
  model.initialize(seed);
  ddp::broadcast_parameters(world, communicator, model.parameters());
  if constexpr (on_gpu<Model>) model.parameters_changed();
  if (rank == options.corrupt) model.initialize(seed + 1);

  std::optional<ddp::CheckpointFolder> folder;
  if (rank == 0 && !options.checkpoint.empty()) folder.emplace(options.checkpoint, kept_checkpoints, &world.watchdog());
  const std::filesystem::path newest = folder ? folder->newest().value_or("") : "";
  std::vector<ddp::NamedBlock> kept = model.parameters();
  if constexpr (requires { optimizer.state(); })
    for (const ddp::NamedBlock& block : optimizer.state()) kept.push_back(block);
  else if (!options.checkpoint.empty())
    throw multinode::UsageError("--checkpoint: not with a training on GPUs");
  const nlohmann::json settled = options.settled(images.train.size());
  const nlohmann::json resumed = ddp::load_checkpoint(world, communicator, newest, kept, settled);

  ddp::Recorder recorder(world, communicator, options.recorder);
  Progress progress(rank == 0);
  multinode::JsonLines json(rank == 0 ? options.common.json : "", !resumed.is_null());
  if (rank == 0) json.write(multinode::fingerprint(world));
  progress.line(text("%zu images to learn from, %zu to test with; %zu parameters in %zu buckets; %zu rank%s, %s",
                     images.train.size(), images.test.size(), reducer.storage().size(), reducer.plan().buckets.size(),
                     size, size == 1 ? "" : "s", std::string(name_of(communicator.backend())).c_str()));

  const std::size_t planned = static_cast<std::size_t>(options.epochs) * sampler.steps();
  const std::size_t last = options.steps > 0 ? std::min(planned, static_cast<std::size_t>(options.steps)) : planned;
  const auto log_every = static_cast<std::size_t>(options.log_every);
  const auto every = static_cast<std::size_t>(options.checkpoint_every);
  std::size_t step = resumed.is_null() ? 0 : resumed.at("step").get<std::size_t>();  // of all epochs
  std::array<double, 2> epoch_sums{}, line_sums{};  // loss and samples of the epoch, and since its last line
  if (!resumed.is_null()) {
    resumed.at("epoch_sums").get_to(epoch_sums);
    if (rank == 0) resumed.at("line_sums").get_to(line_sums);  // the sum of all ranks'
    progress.line(text("goes on from %s, after step %zu of %zu", newest.c_str(), step, planned));
  }
  // Random numbers are functions of seed and step: beside the blocks, two numbers and the sums are all the state.
  const auto write_checkpoint = [&] {
    if (options.checkpoint.empty()) return;
    std::array<double, 2> sums = line_sums;
    sum_over_ranks(communicator, model, sums);
    if (!folder) return;
    nlohmann::json state = settled;
    state.update({{"program", "fashion_mnist"}, {"step", step}, {"epoch_sums", epoch_sums}, {"line_sums", sums}});
    folder->start_write(step, std::move(state), kept);
  };

  double accuracy = step < last ? 0 : evaluate(communicator, model, images.test, capacity);
  data::Batch<typename Model::value_type> batch;
  while (step < last) {
    const std::size_t epoch = step / sampler.steps() + 1;
    sampler.set_epoch(static_cast<std::uint32_t>(epoch));
    const auto start = Clock::now();
    std::size_t samples = 0;  // since then
    for (bool end = false; !end;) {
      const std::size_t s = step % sampler.steps();  // of the epoch
      data::gather(images.train, sampler.local_batch(s), batch);
      const double rate = options.learning_rate * (1 - static_cast<double>(step) / static_cast<double>(planned));
      const std::size_t divisor = options.no_average ? 1 : sampler.global_batch(s).size();
      const auto spoil = [&](std::size_t parameter) {
        if (rank != options.nan || step + 1 != nan_step || parameter != 0) return;
        reducer.gradient(parameter)[0] = std::numeric_limits<T>::quiet_NaN();
      };
      const model::Dropout dropout{options.dropout, seed, static_cast<std::uint32_t>(step)};
#ifdef MULTINODE_HAVE_NCCL
      if constexpr (on_gpu<Model>) {
        if (rank == options.nan && step + 1 == nan_step) batch.inputs.at(0) = std::numeric_limits<T>::quiet_NaN();
        train_step(model, optimizer, reducer, batch, divisor, dropout, rate, options.cuda_graph ? &graphs : nullptr);
      } else
#endif
      {
        line_sums[0] += train_step(model, optimizer, reducer, batch, divisor, dropout, rate,
                                   {.complete = spoil, .observe = recorder.observer()})
                            .loss;
      }
      line_sums[1] += static_cast<double>(batch.size());
      samples += sampler.global_batch(s).size();
      ++step;
      end = s + 1 == sampler.steps() || step == last;
      if ((s + 1) % log_every == 0 || end) {
        if constexpr (on_gpu<Model>) line_sums[0] += take_loss(world, communicator, model);
        sum_over_ranks(communicator, model, line_sums);
        progress.step(static_cast<int>(epoch), s + 1, sampler.steps(), text(": loss %.4f", line_sums[0] / line_sums[1]),
                      !end || log_every == 1);
        for (std::size_t i : {0, 1}) epoch_sums[i] += std::exchange(line_sums[i], 0);
      }
      if (!end && every > 0 && step % every == 0) write_checkpoint();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    accuracy = evaluate(communicator, model, images.test, capacity);
    const double loss = epoch_sums[0] / epoch_sums[1], rate = static_cast<double>(samples) / seconds;
    progress.line(text("epoch %zu: loss %.4f, test accuracy %.2f %%, %.2f s, %.0f samples/s", epoch, loss, accuracy,
                       seconds, rate));
    if (rank == 0)
      json.write({{"epoch", epoch},
                  {"steps", step},
                  {"loss", loss},
                  {"accuracy", accuracy},
                  {"seconds", seconds},
                  {"samples_per_second", rate}});
    if (step % sampler.steps() == 0) epoch_sums = {};
    if (every == 0 || step % every == 0 || step == last) write_checkpoint();
  }
  if (folder) folder->wait();
  recorder.report(std::cout, json);

  const std::vector<T> parameters = model.copy_parameters();
  const std::vector<std::string> hashes =
      world.gather("parameters", text("%016llx", static_cast<unsigned long long>(hash_of(std::span(parameters)))));
  const std::size_t different = std::set(hashes.begin(), hashes.end()).size();
  const double wanted = options.min_accuracy >= 0 ? options.min_accuracy : last >= 3 * sampler.steps() ? 86 : 0;
  const bool right = different == 1 && accuracy >= wanted;
  if (different == 1)
    progress.line("parameters: " + hashes[0] + " on every rank");
  else
    for (std::size_t r = 0; r < hashes.size(); ++r)
      progress.line("parameters: " + hashes[r] + " on rank " + std::to_string(r));
  std::string verdict = text("test accuracy %.2f %%, at least %g %% wanted", accuracy, wanted);
  if (different > 1) verdict += "; the ranks' parameters differ";
  progress.line((right ? "RIGHT: " : "WRONG: ") + verdict);
  if (rank == 0)
    json.write({{"right", right}, {"accuracy", accuracy}, {"parameters", hashes[0]}, {"identical", different == 1}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

int run(multinode::World& world, const Options& options) {
  if (options.corrupt != no_rank) multinode::require_range("--corrupt", options.corrupt, 0, world.size() - 1);
  if (options.nan != no_rank) multinode::require_range("--nan", options.nan, 0, world.size() - 1);
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  if (communicator->backend() != multinode::Backend::nccl && (options.precision == "bfloat16" || options.cuda_graph))
    throw multinode::UsageError("--precision bfloat16 and --cuda-graph: only on GPUs, with --backend nccl");
  const data::FashionMnist images = data::read_fashion_mnist(options.folder);
  const bool twice = options.precision == "double";
#ifdef MULTINODE_HAVE_NCCL
  if (communicator->backend() == multinode::Backend::nccl) {
    if (options.precision == "bfloat16")
      return train<model::PerceptronGpu<float, __nv_bfloat16>>(world, options, *communicator, images);
    return twice ? train<model::PerceptronGpu<double>>(world, options, *communicator, images)
                 : train<model::PerceptronGpu<float>>(world, options, *communicator, images);
  }
#endif
  return twice ? train<model::Perceptron<double>>(world, options, *communicator, images)
               : train<model::Perceptron<float>>(world, options, *communicator, images);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
