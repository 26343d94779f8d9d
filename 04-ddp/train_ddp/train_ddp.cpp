// train_ddp: all ranks train one network on a table, for binary classification.
// Exit status: 0 the accuracy on held-out rows is high enough, and all ranks have the same parameters; 1 not, failed or
// timed out; 2 bad command line or environment; 77 no GPU for --backend nccl.
#include "data/csv.hpp"
#include "data/synthetic.hpp"
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "model/training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <stdexcept>

namespace {

struct Options {
  multinode::CommonOptions common;
  std::string data;
  int epochs = 100;
  std::int64_t batch_size = 32;
  double learning_rate = 1e-3;
  double min_accuracy = -1;
};

void validate(const Options& options) {
  using multinode::require_range;
  require_range("--epochs", options.epochs, 1, 1'000'000);
  require_range<std::int64_t>("--batch-size", options.batch_size, 1, 1'000'000);
  require_range("--learning-rate", options.learning_rate, 0.0, 1e6);
  if (options.min_accuracy != -1) require_range("--min-accuracy", options.min_accuracy, 0.0, 100.0);
  multinode::parse_backend(options.common.backend);
}

struct Rows {
  data::Table table;                    // standardised by the rows that are trained on
  std::size_t trained = 0;              // the first rows
  std::vector<std::uint32_t> held_out;  // the others, a fifth of all
  double wanted = 0;                    // accuracy, in %
  std::string described;
};

// Throws UsageError for a file that cannot be read, std::runtime_error, naming it, for one that does not fit.
Rows read_rows(const Options& options) {
  const bool made_up = options.data.empty();
  data::Table table = made_up ? data::synthetic_table(768, 8, options.common.seed) : data::read_csv(options.data);
  for (std::size_t row = 0; row < table.size(); ++row)
    if (const double answer = table.targets[row]; answer != 0 && answer != 1)
      throw std::runtime_error(options.data + ": " + table.names.back() + " is " + std::to_string(answer) + " in row " +
                               std::to_string(row + 1) + " of numbers; the last column must be 0 or 1");
  if (table.size() < 10)
    throw std::runtime_error(options.data + ": " + std::to_string(table.size()) + " rows; at least 10 are needed");

  const std::size_t trained = table.size() - table.size() / 5;
  std::vector<std::uint32_t> held_out(table.size() - trained);
  std::iota(held_out.begin(), held_out.end(), static_cast<std::uint32_t>(trained));
  double yes = 0;
  for (const std::uint32_t row : held_out) yes += 100 * table.targets[row] / static_cast<double>(held_out.size());
  const double wanted = options.min_accuracy >= 0 ? options.min_accuracy : made_up ? 75 : std::max(yes, 100 - yes);

  std::string described = std::to_string(trained) + " rows to learn from, " + std::to_string(held_out.size()) +
                          " held out, " + std::to_string(table.features()) + " features";
  for (const std::size_t column : data::standardise(table, trained))
    described += "; " + table.names[column] + " has the same value in every row";
  return {std::move(table), trained, std::move(held_out), wanted, std::move(described)};
}

template <class Model>
int train(multinode::World& world, multinode::Communicator& communicator, const Options& options) {
  const std::uint64_t seed = options.common.seed;
  const Rows rows = read_rows(options);
  const auto batch_size = static_cast<std::size_t>(options.batch_size * world.size());
  ddp::DistributedSampler sampler(rows.trained, batch_size, world.rank(), world.size(), seed);

  Model model({{rows.table.features(), 12, 8, 1}, model::Loss::binary_cross_entropy}, rows.table.size());
  typename Model::Adam optimizer(model.parameters());
  ddp::Reducer<float> reducer = make_reducer(world, communicator, model);
  start_training(world, communicator, model, seed);

  if (world.rank() == 0) std::printf("%s; ranks: %d\n", rows.described.c_str(), world.size());
  multinode::JsonLines json(world.rank() == 0 ? options.common.json : "");
  if (world.rank() == 0) json.write(multinode::fingerprint(world));
  data::Batch<float> batch;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint32_t>(epoch));
    for (std::size_t step = 0; step < sampler.steps(); ++step) {
      data::gather(rows.table, sampler.local_batch(step), batch);
      train_step(model, optimizer, reducer, batch, sampler.global_batch(step).size(), {}, options.learning_rate);
    }
    double loss = take_loss(world, communicator, model);
    sum_over_ranks(communicator, model, {&loss, 1});
    loss /= static_cast<double>(rows.trained);
    if ((epoch % 20 == 0 || epoch == options.epochs) && world.rank() == 0)
      std::printf("epoch %d: loss %.4f\n", epoch, loss);
    json.write({{"epoch", epoch}, {"loss", loss}});
  }

  data::gather(rows.table, rows.held_out, batch);
  model.load(batch, {});
  model.forward();
  const double accuracy = 100 * static_cast<double>(model.take_totals().right) / static_cast<double>(batch.size());
  const std::vector<std::string> hashes = parameter_hashes(world, model);
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  const bool right = accuracy >= rows.wanted && identical;
  if (world.rank() == 0)
    std::printf("%s: accuracy %.1f %% on %zu held-out rows, at least %.1f %% wanted; the ranks' parameters are %s\n",
                right ? "RIGHT" : "WRONG", accuracy, batch.size(), rows.wanted, identical ? "identical" : "different");
  json.write({{"right", right}, {"accuracy", accuracy}, {"identical", identical}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  namespace po = boost::program_options;
  po::options_description known("Options of train_ddp");
  known.add_options()("data", po::value(&options.data)->value_name("FILE.csv"),
                      "table of numbers; the last column, 0 or 1, is the answer (default: 768 rows with 8 features, "
                      "made from --seed)")                                                                         //
      ("epochs", po::value(&options.epochs)->default_value(options.epochs), "passes over all rows")                //
      ("batch-size", po::value(&options.batch_size)->default_value(options.batch_size), "rows per step and rank")  //
      ("learning-rate", po::value(&options.learning_rate)->default_value(options.learning_rate), "of Adam")        //
      ("min-accuracy", po::value(&options.min_accuracy),
       "exit with 1 below this accuracy on held-out rows, in % (default: 75 without --data; with --data that of always "
       "giving the more frequent answer)");
  const auto validated = [&] { validate(options); };
  return multinode::run({"train_ddp", known, options.common, validated}, argc, argv, [&](multinode::World& world) {
    const auto communicator = make_communicator(world, multinode::parse_backend(options.common.backend));
    return with_perceptron<float>(*communicator,
                                  [&]<class Model>() { return train<Model>(world, *communicator, options); });
  });
}
