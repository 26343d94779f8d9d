#include "train_table.hpp"

#include "data/synthetic.hpp"

#include <multinode/communicator.hpp>
#include <multinode/program_options.hpp>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace {

void validate(const TrainOptions& options) {
  using multinode::require_range;
  require_range("--epochs", options.epochs, 1, 1'000'000);
  require_range<std::int64_t>("--batch-size", options.batch_size, 1, 1'000'000);
  require_range("--learning-rate", options.learning_rate, 0.0, 1e6);
  if (options.min_accuracy != -1) require_range("--min-accuracy", options.min_accuracy, 0.0, 100.0);
  multinode::parse_backend(options.common.backend);
}

}  // namespace

multinode::Program TrainOptions::program(const std::string& name) {
  namespace po = boost::program_options;
  po::options_description known("Options of " + name);
  known.add_options()("data", po::value(&data)->value_name("FILE.csv"),
                      "rows of numbers, the last of them 0 or 1: what is to be told from the others "
                      "(default: 768 rows with 8 features, made up from --seed)")                        //
      ("epochs", po::value(&epochs)->default_value(epochs), "times that each row is learned from")       //
      ("batch-size", po::value(&batch_size)->default_value(batch_size), "rows in a step, of each rank")  //
      ("learning-rate", po::value(&learning_rate)->default_value(learning_rate), "of Adam")              //
      ("min-accuracy", po::value(&min_accuracy),
       "% of the held-out rows below which the run has failed (default: 75 for made-up rows; with --data what "
       "always giving the more frequent answer would reach)");
  return {name, known, common, [this] { validate(*this); }};
}

TrainTable read_train_table(const TrainOptions& options) {
  const bool made_up = options.data.empty();
  data::Table table = made_up ? data::synthetic_table(768, 8, options.common.seed) : data::read_csv(options.data);
  for (std::size_t row = 0; row < table.size(); ++row)
    if (const double answer = table.targets[row]; answer != 0 && answer != 1)
      throw std::runtime_error(options.data + ": " + table.names.back() + " is " + std::to_string(answer) + " in row " +
                               std::to_string(row + 1) + " of numbers; the last column must be 0 or 1");
  if (table.size() < 10)
    throw std::runtime_error(options.data + ": " + std::to_string(table.size()) + " rows; it takes 10 at least");

  const std::size_t trained = table.size() - table.size() / 5;
  std::vector<std::uint32_t> held_out(table.size() - trained);
  std::iota(held_out.begin(), held_out.end(), static_cast<std::uint32_t>(trained));
  double yes = 0;
  for (const std::uint32_t row : held_out) yes += 100 * table.targets[row] / static_cast<double>(held_out.size());
  const double wanted = options.min_accuracy >= 0 ? options.min_accuracy : made_up ? 75 : std::max(yes, 100 - yes);

  std::string described = std::to_string(trained) + " rows to learn from, " + std::to_string(held_out.size()) +
                          " held out, " + std::to_string(table.features()) + " features";
  for (const std::size_t column : data::standardise(table, trained))
    described += "; " + table.names[column] + " is the same in every row and tells nothing";
  return {std::move(table), trained, std::move(held_out), wanted, std::move(described)};
}
