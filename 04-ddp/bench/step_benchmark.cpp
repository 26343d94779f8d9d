// step_benchmark: steps of data-parallel training a second, and what a step's time is spent on. The model is the
// perceptron of fashion_mnist; the images are random and in memory before the first step.
// Exit status: 0 measured, 1 failed or timed out, 2 bad command line or environment.
#include "../ddp/reducer.hpp"
#include "../ddp/sampler.hpp"
#include "../model/perceptron.hpp"
#include "../model/training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <random>

namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

struct Options {
  multinode::CommonOptions common;
  std::size_t batch_size = 32, steps = 200, warm_up = 20;
  std::string bucket_bytes;
  bool no_overlap = false, independent = false;

  multinode::Program program() {
    namespace po = boost::program_options;
    po::options_description known("Options of step_benchmark");
    known.add_options()                                                                                               //
        ("batch-size", po::value(&batch_size)->default_value(batch_size), "images in a step, of all ranks together")  //
        ("steps", po::value(&steps)->default_value(steps), "that are measured")                                       //
        ("warm-up", po::value(&warm_up)->default_value(warm_up), "steps before them")                                 //
        ("bucket-bytes", po::value(&bucket_bytes)->value_name("BYTES"),
         "of every bucket: 1 reduces each gradient alone, 1G all at once (default: the reducer's)")        //
        ("no-overlap", po::bool_switch(&no_overlap), "buckets, reduced when the backward pass has ended")  //
        ("independent", po::bool_switch(&independent), "ranks do not communicate: each trains its own model");
    return {"step_benchmark", known, common, [this] {
              multinode::require_range<std::size_t>("--batch-size", batch_size, 1, 1'000'000);
              multinode::require_range<std::size_t>("--steps", steps, 1, 1'000'000'000);
              reducer_options();
            }};
  }

  ddp::ReducerOptions reducer_options() const {
    ddp::ReducerOptions options;
    options.overlap = !no_overlap;
    if (!bucket_bytes.empty())
      options.first_bucket_bytes = options.bucket_bytes = multinode::parse_size(bucket_bytes, "--bucket-bytes");
    return options;
  }
};

int run(multinode::World& world, const Options& options) {
  const std::vector<std::size_t> sizes = {784, 512, 512, 10};
  const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(options.common.backend));
  const ddp::Range part =
      ddp::part_of(options.batch_size, static_cast<std::size_t>(world.rank()), static_cast<std::size_t>(world.size()));
  const std::size_t batch_size = part.end - part.begin;
  model::Perceptron<float> model({.sizes = sizes}, batch_size);
  model::Sgd<float> optimizer(model.parameters(), 0.9);
  model.initialize(options.common.seed);
  using Reducer = ddp::Reducer<float>;
  Reducer reducer = options.independent ? Reducer(ddp::AllReduce{}, model.parameters(), model.gradient_storage(),
                                                  options.reducer_options())
                                        : make_reducer(world, *communicator, model, options.reducer_options());

  std::minstd_rand random(static_cast<std::uint32_t>(options.common.seed + part.begin));
  std::vector<data::Batch<float>> batches(16);
  for (data::Batch<float>& batch : batches)
    for (std::size_t i = part.begin; i < part.end; ++i) {
      for (std::size_t p = 0; p < sizes[0]; ++p) batch.inputs.push_back(static_cast<float>(random()) / 0x1p30f - 1);
      batch.labels.push_back(static_cast<std::uint8_t>((random() >> 8) % sizes.back()));
      batch.samples.push_back(static_cast<std::uint32_t>(i));
    }

  std::array<Seconds, StepTimes::names.size()> sums{};
  const auto add = [&](const StepTimes& times) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += times.at[i + 1] - times.at[i];
  };
  Clock::time_point start;
  for (std::size_t step = 0; step < options.warm_up + options.steps; ++step) {
    if (step == options.warm_up) {
      communicator->barrier();
      sums = {};
      start = Clock::now();
    }
    train_step(model, optimizer, reducer, batches[step % batches.size()],
               options.independent ? batch_size : options.batch_size,
               {0.25, options.common.seed, static_cast<std::uint32_t>(step)}, 1e-3, {.observe = add});
  }
  const Seconds all = Clock::now() - start;

  // The slowest rank's step; means of the others.
  const auto each = [&](Seconds s) { return s.count() * 1e3 / static_cast<double>(options.steps); };
  double slowest = each(all);
  communicator->all_reduce(std::span<double>(&slowest, 1), multinode::Reduction::max);
  double means[] = {each(sums[0]), each(sums[1]), each(sums[2]), each(sums[3])};
  communicator->all_reduce(std::span<double>(means), multinode::Reduction::average);
  if (world.rank() == 0) {
    std::printf(
        "%zu images a step, %d ranks, %s: %.3f ms a step: forward %.3f, backward %.3f, exposed communication %.3f, "
        "update %.3f\n",
        options.batch_size, world.size(), options.independent ? "independent" : name_of(communicator->backend()).data(),
        slowest, means[0], means[1], means[2], means[3]);
    multinode::JsonLines json(options.common.json);
    json.write(multinode::fingerprint(world));
    json.write({{"batch_size", options.batch_size},
                {"ranks", world.size()},
                {"independent", options.independent},
                {"step_ms", slowest},
                {"forward_ms", means[0]},
                {"backward_ms", means[1]},
                {"exposed_ms", means[2]},
                {"update_ms", means[3]}});
  }
  return multinode::exit_right;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
