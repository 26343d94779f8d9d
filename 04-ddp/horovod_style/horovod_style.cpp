// horovod_style: a training on all ranks as Horovod's users write it: their own loop, and an optimizer that averages
// the gradients. Then the check: one process with all samples must end with the same parameters. Exit status: 0 it
// does, the loss fell, and all ranks have the same parameters; 1 not, failed or timed out; 2 bad command line or
// environment; 77 no GPU for --backend nccl.
// SPDX-License-Identifier: Apache-2.0
#include "ddp/philox.hpp"
#include "model/training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace {

constexpr std::size_t units = 10, batch_size = 20;  // samples of a rank
constexpr double learning_rate = 1e-3;

// Samples first ... first + count - 1 of an endless data set: inputs and targets within -1 ... 1.
data::Batch<double> samples(std::size_t first, std::size_t count, std::uint64_t seed) {
  data::Batch<double> batch;
  for (auto s = static_cast<std::uint32_t>(first); s < first + count; ++s) {
    batch.samples.push_back(s);
    for (std::uint32_t i = 0; i < units; ++i) {
      const ddp::PhiloxWords random = ddp::philox({s, ddp::stream_synthetic, i, 0}, seed);
      batch.inputs.push_back(std::ldexp(random[0], -31) - 1);
      batch.targets.push_back(std::ldexp(random[1], -31) - 1);
    }
  }
  return batch;
}

struct Options {
  multinode::CommonOptions common;
  std::string compression = "none";
  std::size_t steps = 100;
};

// Wraps a model's optimizer and owns the model's Reducer. A training that has one changes in three places: all ranks
// begin with rank 0's parameters and optimizer state (broadcast()), the backward pass marks gradients in reducer() as
// they become ready, between reducer().begin() and the update, and the update is made by this.
template <class Model, class Optimizer = typename Model::Sgd>
class DistributedOptimizer {
 public:
  // What it is given must outlive it. All ranks, with the same model and options.
  DistributedOptimizer(multinode::World& world, multinode::Communicator& communicator, Model& model,
                       Optimizer& optimizer, const ddp::ReducerOptions& options)
      : world_(world),
        communicator_(communicator),
        model_(model),
        optimizer_(optimizer),
        reducer_(make_reducer(world, communicator, model, options)) {}

  ddp::Reducer<typename Model::value_type>& reducer() { return reducer_; }

  // Gives every rank rank 0's parameters and optimizer state. Collective; throws as broadcast_parameters does.
  void broadcast() {
    ddp::broadcast_parameters(world_, communicator_, model_.parameters());
    ddp::broadcast_parameters(world_, communicator_, optimizer_.state());
  }

  // Moves the parameters by the averages of all ranks' gradients. Collective.
  void update() {
    reducer_.wait();
    model_.update(optimizer_);  // by the learning rate that the batch was loaded with
  }

 private:
  multinode::World& world_;
  multinode::Communicator& communicator_;
  Model& model_;
  Optimizer& optimizer_;
  ddp::Reducer<typename Model::value_type> reducer_;
};

// How far the parameters of P ranks may lie from those of one process after s steps. Weights and biases begin within
// 1 / sqrt(10), so they stay within w = 1 / sqrt(10) + s rate g. Inputs and targets are within 1, so an output's error
// is at most e = 10 w + w + 1, and a sample's gradient, 2 / 10 of error times input, at most g = 0.2 e. That makes g =
// 0.2 (11 / sqrt(10) + 1) / (1 - 2.2 s rate). Both ways add the same numbers, in chains of at most n = 20 P + 30
// additions, so each mean is off by at most n u g, u = 2^-53 (Higham, Accuracy and Stability of Numerical Algorithms,
// 2nd ed., section 3.1), and their updates round once more, by u (w + rate g). Compression adds to that what
// ddp/hooks.cpp derives. That is one step's difference b of each of the 110 parameters, sqrt(110) b in the 2-norm. The
// loss is quadratic, and its second derivative between 0 and 2.2, so a step does not make a difference from before
// larger in that norm: sqrt(110) s b after s steps.
double bound(int ranks, ddp::Compression compression, double steps) {
  const double u = 0x1p-53, g = 0.2 * (11 / std::sqrt(10.0) + 1) / (1 - 2.2 * steps * learning_rate);
  const double w = 1 / std::sqrt(10.0) + steps * learning_rate * g, n = 20.0 * ranks + 30;
  const auto [relative, absolute] = ddp::error_bound(compression, ranks);
  const double one = learning_rate * (2 * n * u * g + relative * g + absolute) + 2 * u * (w + learning_rate * g);
  return std::sqrt(110.0) * steps * one;
}

template <class Model>
int train(multinode::World& world, multinode::Communicator& communicator, const Options& options) {
  const ddp::Compression compression = ddp::parse_compression(options.compression);
  const std::uint64_t seed = options.common.seed;
  const auto rank = static_cast<std::size_t>(world.rank()), size = static_cast<std::size_t>(world.size());
  const auto say = [&](const std::string& line) {
    if (world.rank() == 0) std::puts(line.c_str());
  };
  const std::string me = "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) +
                         ", local rank " + std::to_string(world.local_rank()) + " of " +
                         std::to_string(world.local_size());
  for (const std::string& one : world.gather("who is there", me)) say(one);

  Model model({{units, units}, model::Loss::mean_square}, batch_size * size);
  model.initialize(seed + rank);  // the ranks do not agree yet
  say("local model: linear, 10 inputs, 10 outputs, 110 parameters");
  const data::Batch<double> batch = samples(batch_size * rank, batch_size, seed);
  say("loss: mean square error of 20 samples a rank");
  typename Model::Sgd sgd(model.parameters());
  DistributedOptimizer optimizer(world, communicator, model, sgd, {.wrap = ddp::compressed(compression)});
  say("optimizer: stochastic gradient descent by the mean over all ranks");
  optimizer.broadcast();
  say("parameters: rank 0's, on all ranks");

  double before = 0, after = 0;
  for (std::size_t step = 1; step <= options.steps; ++step) {
    model.load(batch, {.step = static_cast<std::uint32_t>(step - 1)}, learning_rate);
    model.forward();
    after = take_totals(world, communicator, model).loss;
    optimizer.reducer().begin(batch_size * size);
    model.backward([&](std::size_t parameter) { optimizer.reducer().mark_ready(parameter); });
    optimizer.update();

    sum_over_ranks(communicator, model, {&after, 1});
    after /= static_cast<double>(batch_size * size);
    if (step == 1) before = after;
    if (step == 1 || step % 20 == 0 || step == options.steps) say(fmt::format("step {}: loss {:.6f}", step, after));
  }

  model::Perceptron<double> alone({{units, units}, model::Loss::mean_square}, batch_size * size);
  alone.initialize(seed);
  const std::span<double> gradients = alone.gradient_storage();
  model::Sgd<double> sgd_alone(alone.parameters());
  const data::Batch<double> all = samples(0, batch_size * size, seed);
  for (std::size_t step = 1; step <= options.steps; ++step) {
    alone.load(all, {}, learning_rate);
    alone.forward();
    alone.backward([](std::size_t) {});
    for (double& gradient : gradients) gradient /= static_cast<double>(all.size());
    alone.update(sgd_alone);
  }

  const std::vector<double> together = model.copy_parameters(), expected = alone.copy_parameters();
  double difference = 0;
  for (std::size_t i = 0; i < together.size(); ++i)
    difference = std::max(difference, std::abs(together[i] - expected[i]));
  const double allowed = bound(world.size(), compression, static_cast<double>(options.steps));
  const std::vector<std::string> hashes = parameter_hashes(world, model);
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  const bool right = identical && difference <= allowed && after < before;
  say(fmt::format(
      "done: {}: parameters are {} on all ranks, and differ from those of one process by {:.2g}, at most {:.2g}",
      right ? "RIGHT" : "WRONG", identical ? "the same" : "NOT the same", difference, allowed));
  multinode::JsonLines json(world.rank() == 0 ? options.common.json : "");
  if (world.rank() == 0) json.write(multinode::fingerprint(world));
  json.write({{"right", right},
              {"identical", identical},
              {"loss_before", before},
              {"loss_after", after},
              {"difference", difference},
              {"bound", allowed}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

int run(multinode::World& world, const Options& options) {
  const auto communicator = make_communicator(world, multinode::parse_backend(options.common.backend));
  if (communicator->backend() == multinode::Backend::nccl && options.compression != "none")
    throw multinode::UsageError("--compression: only on CPUs, with --backend mpi or gloo");
  return with_perceptron<double>(*communicator,
                                 [&]<class Model>() { return train<Model>(world, *communicator, options); });
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  Options options;
  po::options_description known("Options of horovod_style");
  known.add_options()("steps", po::value(&options.steps)->default_value(options.steps),
                      "steps of training, all with the same samples")  //
      ("compression", po::value(&options.compression)->default_value(options.compression),
       "send gradients as none (as they are), float16 or bfloat16");
  const auto validate = [&] {
    multinode::require_range<std::size_t>("--steps", options.steps, 2, 200);  // the bound needs 2.2 steps rate < 1
    ddp::parse_compression(options.compression);
    multinode::parse_backend(options.common.backend);
  };
  return multinode::run({"horovod_style", known, options.common, validate}, argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
