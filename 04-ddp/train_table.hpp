// train_table.hpp: what train_single and train_ddp have in common: their options and their data.
#pragma once

#include "data/csv.hpp"

#include <multinode/program.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct TrainOptions {
  multinode::CommonOptions common;
  std::string data;
  int epochs = 100;
  std::int64_t batch_size = 32;
  double learning_rate = 1e-3;
  double min_accuracy = -1;

  multinode::Program program(const std::string& name);
};

struct TrainTable {
  data::Table table;                    // standardised by the rows that are trained on
  std::size_t trained;                  // the first rows
  std::vector<std::uint32_t> held_out;  // the others, a fifth of all
  double wanted;                        // accuracy, in %
  std::string described;
};

// Throws UsageError for a file that cannot be read, std::runtime_error, naming it, for one that does not fit.
TrainTable read_train_table(const TrainOptions& options);
