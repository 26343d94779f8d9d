// random_mlp: trains NVIDIA's large perceptron, 55,616,001 parameters, on random numbers, and prints the time of a
// step. Exit status: 0 the loss fell and all ranks have the same parameters; 1 not, failed or timed out; 2 bad command
// line or environment; 77 no GPU for --backend nccl.
// SPDX-License-Identifier: Apache-2.0
#include "ddp/philox.hpp"
#include "ddp/reducer.hpp"
#include "model/perceptron.hpp"
#include "model/training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>

namespace {

constexpr std::size_t features = 20;

struct Options {
  multinode::CommonOptions common;
  std::size_t hidden_layers = 15, hidden_units = 2048;
  std::size_t batch_size = 512, steps = 2, epochs = 5;
  double learning_rate = 1e-3;
  std::string bucket_bytes = "25M";
  std::string compression = "none";
  bool no_overlap = false;

  multinode::Program program() {
    namespace po = boost::program_options;
    po::options_description known("Options of random_mlp");
    known.add_options()                                                                                               //
        ("batch-size", po::value(&batch_size)->default_value(batch_size), "samples per step and rank")                //
        ("steps", po::value(&steps)->default_value(steps), "steps per epoch")                                         //
        ("epochs", po::value(&epochs)->default_value(epochs), "number of epochs; each has other samples")             //
        ("learning-rate", po::value(&learning_rate)->default_value(learning_rate), "of stochastic gradient descent")  //
        ("hidden-layers", po::value(&hidden_layers)->default_value(hidden_layers),
         "number of hidden layers; the first has a quarter of the units of the others")                    //
        ("hidden-units", po::value(&hidden_units)->default_value(hidden_units), "units per hidden layer")  //
        ("bucket-bytes", po::value(&bucket_bytes)->default_value(bucket_bytes)->value_name("BYTES"),
         "size at which a bucket of gradients is closed; the first closes at 1M, if that is less")  //
        ("compression", po::value(&compression)->default_value(compression),
         "send gradients as none (as they are), float16 or bfloat16")  //
        ("no-overlap", po::bool_switch(&no_overlap), "reduce the gradients after the backward pass, for comparison");
    return {"random_mlp", known, common, [this] { validate(); }};
  }

  void validate() {
    using multinode::require_range;
    require_range<std::size_t>("--batch-size", batch_size, 1, 1'000'000);
    require_range<std::size_t>("--steps", steps, 1, 1'000'000);
    require_range<std::size_t>("--epochs", epochs, 1, 1'000);
    require_range("--learning-rate", learning_rate, 0.0, 1e6);
    require_range<std::size_t>("--hidden-layers", hidden_layers, 2, 1'000);
    require_range<std::size_t>("--hidden-units", hidden_units, 4, 100'000);
    multinode::parse_backend(common.backend);
    reducer();
  }

  model::Architecture architecture() const {
    std::vector<std::size_t> sizes{features, hidden_units / 4};
    sizes.insert(sizes.end(), hidden_layers - 1, hidden_units);
    sizes.push_back(1);
    return {.sizes = sizes, .loss = model::Loss::mean_square, .hidden_relu = false};
  }

  ddp::ReducerOptions reducer() const {
    ddp::ReducerOptions options;
    options.bucket_bytes = multinode::parse_size(bucket_bytes, "--bucket-bytes");
    options.first_bucket_bytes = std::min(options.first_bucket_bytes, options.bucket_bytes);
    options.overlap = !no_overlap;
    options.wrap = ddp::compressed(ddp::parse_compression(compression));
    return options;
  }
};

// Samples first ... first + count - 1: inputs are uniform in [0, 1), and the target is their mean.
void draw(std::size_t first, std::size_t count, std::uint64_t seed, data::Batch<float>& batch) {
  batch.inputs.resize(count * features);
  batch.targets.resize(count);
  batch.samples.resize(count);
  for (std::size_t s = 0; s < count; ++s) {
    const auto sample = static_cast<std::uint32_t>(first + s);
    const std::span<float> inputs(batch.inputs.data() + s * features, features);
    static_assert(features % 4 == 0);
    for (std::size_t i = 0; i < features; i += 4) {
      const ddp::PhiloxWords random =
          ddp::philox({static_cast<std::uint32_t>(i / 4), ddp::stream_synthetic, sample, 0}, seed);
      for (std::size_t j = 0; j < 4; ++j) inputs[i + j] = static_cast<float>(random[j] >> 8) * 0x1p-24f;
    }
    batch.targets[s] = std::accumulate(inputs.begin(), inputs.end(), 0.0f) / static_cast<float>(features);
    batch.samples[s] = sample;
  }
}

template <class Model>
int train(multinode::World& world, multinode::Communicator& communicator, const Options& options) {
  const auto rank = static_cast<std::size_t>(world.rank()), size = static_cast<std::size_t>(world.size());
  const std::uint64_t seed = options.common.seed;

  Model model(options.architecture(), options.batch_size);
  typename Model::Sgd optimizer(model.parameters());
  ddp::Reducer<float> reducer = make_reducer(world, communicator, model, options.reducer());
  start_training(world, communicator, model, seed);
  multinode::JsonLines json(rank == 0 ? options.common.json : "");
  if (rank == 0) {
    json.write(multinode::fingerprint(world));
    std::cout << reducer.summary(communicator) << std::endl;
  }

  data::Batch<float> batch, first_batch;
  draw(rank * options.batch_size, options.batch_size, seed, first_batch);
  std::size_t step = 0;  // of all epochs
  const auto loss_of_first_batch = [&] {
    model.load(first_batch, {.step = static_cast<std::uint32_t>(step)});
    model.forward();
    double loss = take_totals(world, communicator, model, true).loss;
    sum_over_ranks(communicator, model, {&loss, 1});
    return loss / static_cast<double>(size * options.batch_size);
  };
  const double before = loss_of_first_batch();
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
    std::vector<double> losses(size);  // of each rank's samples
    for (std::size_t s = 0; s < options.steps; ++s, ++step) {
      draw((step * size + rank) * options.batch_size, options.batch_size, seed, batch);
      train_step(model, optimizer, reducer, batch, size * options.batch_size,
                 {0, seed, static_cast<std::uint32_t>(step)}, options.learning_rate);
    }
    losses[rank] =
        take_totals(world, communicator, model).loss / static_cast<double>(options.steps * options.batch_size);
    sum_over_ranks(communicator, model, losses);
    for (std::size_t r = 0; r < size && rank == 0; ++r)
      std::cout << fmt::format("[rank {}] Epoch {} | Batchsize: {} | Steps: {} | Loss: {:.6f}", r, epoch,
                               options.batch_size, options.steps, losses[r])
                << std::endl;
    if (rank == 0)
      json.write({{"epoch", epoch},
                  {"steps", step},
                  {"loss", std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(size)}});
  }
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
  const double step_ms = time.count() / static_cast<double>(step);
  const double after = loss_of_first_batch();
  const std::vector<std::string> hashes = parameter_hashes(world, model);
  const bool identical = std::ranges::count(hashes, hashes[0]) == world.size();
  const bool right = identical && after < before;
  if (rank == 0) {
    std::cout << fmt::format("{:.1f} ms per step\n", step_ms)
              << fmt::format("loss of the first batch: {:.6f}, and {:.6f} after {} steps\n", before, after, step)
              << (right ? "RIGHT: " : "WRONG: ") << "the loss " << (after < before ? "fell" : "did not fall")
              << (identical ? "; parameters: " + hashes[0] + " on every rank" : "; the ranks' parameters differ")
              << std::endl;
    json.write(
        {{"right", right}, {"before", before}, {"after", after}, {"step_ms", step_ms}, {"identical", identical}});
  }
  return right ? multinode::exit_right : multinode::exit_wrong;
}

int run(multinode::World& world, const Options& options) {
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  if (communicator->backend() == multinode::Backend::nccl && options.compression != "none")
    throw multinode::UsageError("--compression: only on CPUs, with --backend mpi or gloo");
  return with_perceptron<float>(*communicator,
                                [&]<class Model>() { return train<Model>(world, *communicator, options); });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
