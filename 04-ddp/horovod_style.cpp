// horovod_style: one step of training on all ranks, in the order in which Horovod's users write it, with one line per
// part. Then the check: one process with all samples must end with the same parameters.
// Exit status: 0 it does, the loss fell, and all ranks have the same parameters; 1 not, failed or timed out; 2 bad
// command line or environment.
#include "ddp/distributed_optimizer.hpp"
#include "ddp/philox.hpp"
#include "model/perceptron.hpp"
#include "train_step.hpp"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

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

// How far the parameters of P ranks may lie from those of one process after one step. Weights and biases begin within
// w = 1 / sqrt(10), inputs and targets are within 1, so an output's error is at most e = 10 w + w + 1, and a sample's
// gradient, 2 / 10 of error times input, at most g = 0.2 e. Both ways add the same numbers, in chains of at most
// n = 20 P + 30 additions, so each mean is off by at most n u g, u = 2^-53 (Higham, Accuracy and Stability of Numerical
// Algorithms, 2nd ed., section 3.1), and their updates round once more, by u (w + rate g). What compression adds is
// derived in reducer.cpp; it is taken twice, for the terms of second order.
double bound(int ranks, ddp::Compression compression) {
  const double u = 0x1p-53, w = 1 / std::sqrt(10.0), g = 0.2 * (11 * w + 1), n = 20.0 * ranks + 30;
  const double rounding = compression == ddp::Compression::none      ? 0
                          : compression == ddp::Compression::float16 ? 0x1p-11 * g + 2 * 0x1p-25
                                                                     : 0x1p-8 * g + 2 * 0x1p-134;
  return learning_rate * (2 * n * u * g + 2 * ranks * rounding) + 2 * u * (w + learning_rate * g);
}

int run(multinode::World& world, const multinode::CommonOptions& options, ddp::Compression compression) {
  const auto communicator = make_cpu_communicator(world, multinode::parse_backend(options.backend));
  const auto rank = static_cast<std::size_t>(world.rank()), size = static_cast<std::size_t>(world.size());
  const auto say = [&](const std::string& line) {
    if (world.rank() == 0) std::puts(line.c_str());
  };
  const std::string me = "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) +
                         ", local rank " + std::to_string(world.local_rank()) + " of " +
                         std::to_string(world.local_size());
  for (const std::string& one : world.gather("who is there", me)) say(one);

  model::Perceptron<double> model({{units, units}, model::Loss::mean_square}, batch_size * size);
  model.initialize(options.seed + rank);  // the ranks do not agree yet
  say("local model: linear, 10 inputs, 10 outputs, 110 parameters");
  const data::Batch<double> batch = samples(batch_size * rank, batch_size, options.seed);
  say("loss: mean square error of 20 samples a rank");
  model::Sgd<double> sgd(model.parameters());
  ddp::DistributedOptimizer<double> optimizer(world, *communicator, sgd, model.parameters(), model.gradient_storage(),
                                              {.compression = compression});
  connect(model, optimizer.reducer());
  say("optimizer: stochastic gradient descent by the mean over all ranks");
  optimizer.broadcast();
  say("parameters: rank 0's, on all ranks");

  const auto mean_loss = [&] {
    double loss = model.forward(batch, {}).loss;
    communicator->all_reduce(std::span(&loss, 1));
    return loss / static_cast<double>(batch_size * size);
  };
  const double before = mean_loss();
  say("forward: loss " + std::to_string(before));
  optimizer.reducer().begin(batch_size * size);
  model.backward([&](std::size_t parameter) { optimizer.reducer().mark_ready(parameter); });
  say("backward: gradients are on their way");
  model.update(optimizer, learning_rate);
  const double after = mean_loss();
  say("update: loss " + std::to_string(after));

  model::Perceptron<double> alone({{units, units}, model::Loss::mean_square}, batch_size * size);
  alone.initialize(options.seed);
  model::Sgd<double> its_sgd(alone.parameters());
  const data::Batch<double> all = samples(0, batch_size * size, options.seed);
  alone.forward(all, {});
  alone.backward([](std::size_t) {});
  for (double& gradient : alone.gradient_storage()) gradient /= static_cast<double>(all.size());
  alone.update(its_sgd, learning_rate);

  const std::vector<double> mine = model.copy_parameters(), its = alone.copy_parameters();
  double difference = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) difference = std::max(difference, std::abs(mine[i] - its[i]));
  const double allowed = bound(world.size(), compression);
  const auto hashes = world.gather("parameters", std::to_string(hash_of<double>(mine)));
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  const bool right = identical && difference <= allowed && after < before;
  say(fmt::format(
      "done: {}: parameters are {} on all ranks, and differ from those of one process by {:.2g}, at most {:.2g}",
      right ? "RIGHT" : "WRONG", identical ? "the same" : "NOT the same", difference, allowed));
  multinode::JsonLines json(world.rank() == 0 ? options.json : "");
  json.write(multinode::fingerprint(world));
  json.write({{"right", right},
              {"identical", identical},
              {"loss_before", before},
              {"loss_after", after},
              {"difference", difference},
              {"bound", allowed}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  multinode::CommonOptions common;
  std::string name;
  ddp::Compression compression{};
  po::options_description known("Options of horovod_style");
  known.add_options()("compression", po::value(&name)->default_value("none"),
                      "send gradients as none (as they are), float16 or bfloat16");
  const auto validate = [&] {
    compression = ddp::parse_compression(name);
    multinode::parse_backend(common.backend);
  };
  return multinode::run({"horovod_style", known, common, validate}, argc, argv,
                        [&](multinode::World& world) { return run(world, common, compression); });
}
