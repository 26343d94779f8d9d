// train_ddp: all ranks train one network on a table of 768 rows, made from --seed, for binary classification.
// Exit status: 0 the accuracy on held-out rows is high enough, and all ranks have the same parameters; 1 not, failed or
// timed out; 2 bad command line or environment; 77 no GPU for --backend nccl.
#include "data/synthetic.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "model/training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <numeric>
#include <set>

namespace {

struct Options {
  multinode::CommonOptions common;
  int epochs = 100;
  std::int64_t batch_size = 32;
  double learning_rate = 1e-3;
  double min_accuracy = 75;  // in %
};

void validate(const Options& options) {
  using multinode::require_range;
  require_range("--epochs", options.epochs, 1, 1'000'000);
  require_range<std::int64_t>("--batch-size", options.batch_size, 1, 1'000'000);
  require_range("--learning-rate", options.learning_rate, 0.0, 1e6);
  require_range("--min-accuracy", options.min_accuracy, 0.0, 100.0);
  multinode::parse_backend(options.common.backend);
}

template <class Model>
int train(multinode::World& world, multinode::Communicator& communicator, const Options& options) {
  const std::uint64_t seed = options.common.seed;
  data::Table table = data::synthetic_table(768, 8, seed);
  const std::size_t trained = table.size() - table.size() / 5;  // the first rows; the others are held out
  data::standardise(table, trained);
  std::vector<std::uint32_t> held_out(table.size() - trained);
  std::iota(held_out.begin(), held_out.end(), static_cast<std::uint32_t>(trained));
  const auto batch_size = static_cast<std::size_t>(options.batch_size * world.size());
  ddp::DistributedSampler sampler(trained, batch_size, world.rank(), world.size(), seed);

  Model model({{table.features, 12, 8, 1}, model::Loss::binary_cross_entropy}, table.size());
  typename Model::Adam optimizer(model.parameters());
  ddp::Reducer<float> reducer = make_reducer(world, communicator, model);
  start_training(world, communicator, model, seed);

  if (world.rank() == 0)
    std::printf("%zu rows to learn from, %zu held out, %zu features; ranks: %d\n", trained, held_out.size(),
                table.features, world.size());
  multinode::JsonLines json(world.rank() == 0 ? options.common.json : "");
  if (world.rank() == 0) json.write(multinode::fingerprint(world));
  data::Batch<float> batch;
  std::uint32_t steps = 0;  // so far
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint32_t>(epoch));
    for (std::size_t step = 0; step < sampler.steps(); ++step, ++steps) {
      data::gather(table, sampler.local_batch(step), batch);
      train_step(model, optimizer, reducer, batch, sampler.global_batch(step).size(), {.step = steps},
                 options.learning_rate);
    }
    double loss = take_totals(world, communicator, model).loss;
    sum_over_ranks(communicator, model, {&loss, 1});
    loss /= static_cast<double>(trained);
    if ((epoch % 20 == 0 || epoch == options.epochs) && world.rank() == 0)
      std::printf("epoch %d: loss %.4f\n", epoch, loss);
    json.write({{"epoch", epoch}, {"loss", loss}});
  }

  data::gather(table, held_out, batch);
  model.load(batch, {.step = steps});
  model.forward();
  const double accuracy = 100 * static_cast<double>(take_totals(world, communicator, model, true).right) /
                          static_cast<double>(batch.size());
  const std::vector<std::string> hashes = parameter_hashes(world, model);
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  const bool right = accuracy >= options.min_accuracy && identical;
  if (world.rank() == 0)
    std::printf("%s: accuracy %.1f %% on %zu held-out rows, at least %.1f %% wanted; the ranks' parameters are %s\n",
                right ? "RIGHT" : "WRONG", accuracy, batch.size(), options.min_accuracy,
                identical ? "identical" : "different");
  json.write({{"right", right}, {"accuracy", accuracy}, {"identical", identical}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  namespace po = boost::program_options;
  po::options_description known("Options of train_ddp");
  known.add_options()("epochs", po::value(&options.epochs)->default_value(options.epochs), "passes over all rows")  //
      ("batch-size", po::value(&options.batch_size)->default_value(options.batch_size), "rows per step and rank")   //
      ("learning-rate", po::value(&options.learning_rate)->default_value(options.learning_rate), "of Adam")         //
      ("min-accuracy", po::value(&options.min_accuracy)->default_value(options.min_accuracy),
       "exit with 1 below this accuracy on held-out rows, in %");
  const auto validated = [&] { validate(options); };
  return multinode::run({"train_ddp", known, options.common, validated}, argc, argv, [&](multinode::World& world) {
    const auto communicator = make_communicator(world, multinode::parse_backend(options.common.backend));
    return with_perceptron<float>(*communicator,
                                  [&]<class Model>() { return train<Model>(world, *communicator, options); });
  });
}
