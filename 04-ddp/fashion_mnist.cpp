// fashion_mnist: trains a perceptron to tell clothes apart, the images shared out over all ranks.
// Exit status: 0 all ranks have the same parameters and the accuracy is reached, 1 not so, failed or timed out, 2 bad
// command line or environment, 77 no GPU for --backend nccl.
#include "data/fashion_mnist.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "progress.hpp"
#include "train_step.hpp"
#ifdef MULTINODE_HAVE_NCCL
#include "ddp/gradient_memory_gpu.hpp"
#include "model/perceptron_gpu.hpp"
#endif

#include <multinode/program.hpp>
#include <multinode/report.hpp>

#include <boost/program_options.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <set>

namespace {

constexpr int no_rank = -1;

struct Options {
  multinode::CommonOptions common;
  std::string folder = data::default_folder;
  int epochs = 3;
  std::int64_t batch_size = 128;
  double learning_rate = 0.05;
  double momentum = 0.9;
  double dropout = 0.25;
  std::string precision = "float";
  std::int64_t steps = 0;
  std::int64_t log_every = 100;
  double min_accuracy = -1;
  bool no_average = false;
  int corrupt = no_rank;

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
        ("precision", po::value(&precision)->default_value(precision), "float or double")              //
        ("steps", po::value(&steps)->default_value(steps), "stop after so many; 0: do not")            //
        ("log-every", po::value(&log_every)->default_value(log_every), "steps between two lines")      //
        ("min-accuracy", po::value(&min_accuracy),
         "test accuracy in % below which the run has failed (default: 86 after 3 epochs or more, else 0)")           //
        ("no-average", po::bool_switch(&no_average), "a fault to look at: sum the gradients, and leave it at that")  //
        ("corrupt", po::value(&corrupt), "a fault to look at: this rank starts from parameters of its own");
    return {"fashion_mnist", known, common, [this] { validate(); }};
  }

  void validate() {
    using multinode::require_range;
    require_range("--epochs", epochs, 1, 100'000);
    require_range<std::int64_t>("--batch-size", batch_size, 1, 1'000'000);
    require_range("--learning-rate", learning_rate, 0.0, 1e6);
    require_range("--momentum", momentum, 0.0, 0.9999);
    require_range("--dropout", dropout, 0.0, 0.99);
    if (precision != "float" && precision != "double")
      throw multinode::UsageError("--precision must be float or double, not '" + precision + "'");
    require_range<std::int64_t>("--steps", steps, 0, 1'000'000'000);
    require_range<std::int64_t>("--log-every", log_every, 1, 1'000'000'000);
    if (min_accuracy != -1) require_range("--min-accuracy", min_accuracy, 0.0, 100.0);
    multinode::parse_backend(common.backend);
  }
};

template <class... Values>
std::string text(const char* format, Values... values) {
  char line[200];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

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
    right += static_cast<double>(model.forward(batch, {}).right);
  }
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
  Model model({.sizes = {data::image_bytes, 512, 512, data::classes}}, capacity);
  typename Model::Sgd optimizer(model.parameters(), options.momentum);
  std::unique_ptr<ddp::GradientMemory<T>> memory;
#ifdef MULTINODE_HAVE_NCCL
  if constexpr (requires { model.stream(); }) {
    communicator.set_stream(model.stream());
    memory = std::make_unique<ddp::GradientMemoryGpu<T>>(model.stream());
  }
#endif
  ddp::Reducer<T> reducer(world, communicator, model.parameters(), model.gradient_storage(), {}, std::move(memory));
  connect(model, reducer);
  model.initialize(seed);
  ddp::broadcast_parameters(world, communicator, model.parameters());
  if (rank == options.corrupt) model.initialize(seed + 1);

  Progress progress(rank == 0);
  multinode::JsonLines json(rank == 0 ? options.common.json : "");
  if (rank == 0) json.write(multinode::fingerprint(world));
  progress.line(text("%zu images to learn from, %zu to test with; %zu parameters in %zu buckets; %zu rank%s, %s",
                     images.train.size(), images.test.size(), reducer.storage().size(), reducer.plan().buckets.size(),
                     size, size == 1 ? "" : "s", std::string(name_of(communicator.backend())).c_str()));

  const std::size_t planned = static_cast<std::size_t>(options.epochs) * sampler.steps();
  const std::size_t last = options.steps > 0 ? std::min(planned, static_cast<std::size_t>(options.steps)) : planned;
  const auto log_every = static_cast<std::size_t>(options.log_every);
  double accuracy = 0;
  data::Batch<typename Model::value_type> batch;
  std::size_t step = 0;  // of all epochs
  for (int epoch = 1; step < last; ++epoch) {
    sampler.set_epoch(static_cast<std::uint32_t>(epoch));
    const auto start = Clock::now();
    double epoch_loss = 0, epoch_samples = 0;
    double sums[2] = {0, 0};  // since the last line: loss, samples
    for (std::size_t s = 0; s < sampler.steps() && step < last; ++s, ++step) {
      data::gather(images.train, sampler.local_batch(s), batch);
      const double rate = options.learning_rate * (1 - static_cast<double>(step) / static_cast<double>(planned));
      const std::size_t divisor = options.no_average ? 1 : sampler.global_batch(s).size();
      sums[0] += train_step(model, optimizer, reducer, batch, divisor,
                            {options.dropout, seed, static_cast<std::uint32_t>(step)}, rate)
                     .loss;
      sums[1] += static_cast<double>(batch.size());
#ifdef MULTINODE_HAVE_CUDA
      if constexpr (requires { model.stream(); }) communicator.synchronize();  // within the deadline
#endif
      const bool end = s + 1 == sampler.steps() || step + 1 == last;
      if ((s + 1) % log_every == 0 || end) {
        sum_over_ranks(communicator, model, sums);
        progress.step(epoch, s + 1, sampler.steps(), text(": loss %.4f", sums[0] / sums[1]), !end || log_every == 1);
        epoch_loss += sums[0];
        epoch_samples += sums[1];
        sums[0] = sums[1] = 0;
      }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    accuracy = evaluate(communicator, model, images.test, capacity);
    const double loss = epoch_loss / epoch_samples;
    progress.line(text("epoch %d: loss %.4f, test accuracy %.2f %%, %.2f s, %.0f samples/s", epoch, loss, accuracy,
                       seconds, epoch_samples / seconds));
    if (rank == 0)
      json.write({{"epoch", epoch},
                  {"steps", step},
                  {"loss", loss},
                  {"accuracy", accuracy},
                  {"seconds", seconds},
                  {"samples_per_second", epoch_samples / seconds}});
  }

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
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  const data::FashionMnist images = data::read_fashion_mnist(options.folder);
  const bool twice = options.precision == "double";
#ifdef MULTINODE_HAVE_NCCL
  if (communicator->backend() == multinode::Backend::nccl)
    return twice ? train<model::PerceptronGpu<double>>(world, options, *communicator, images)
                 : train<model::PerceptronGpu<float>>(world, options, *communicator, images);
#endif
  return twice ? train<model::Perceptron<double>>(world, options, *communicator, images)
               : train<model::Perceptron<float>>(world, options, *communicator, images);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
