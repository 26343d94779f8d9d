// options.hpp: the most used options of nccl-tests, strictly parsed, and what this benchmark adds.
#pragma once

#include "results.hpp"

#include <multinode/base/options.hpp>
#include <multinode/communicator/data_type.hpp>

#include <optional>
#include <string>
#include <vector>

namespace perf {

struct Options {
  std::size_t min_bytes = 32 << 20, max_bytes = 32 << 20;
  double step_factor = 0;  // 0: steps of 1 MiB, as in nccl-tests
  int iterations = 20, warmup = 1, check = 1;
  int cycles = 1;  // 0: until the program is killed
  std::vector<multinode::DataType> types{multinode::DataType::float32};
  int ranks_per_process = 1;
  bool sweep = false;
  std::optional<int> corrupt;  // the rank that corrupts an element
  std::optional<LeastBusbw> least_busbw;
  multinode::CommonOptions common;

  // Sizes of -b, -e, -f in order. At least one.
  std::vector<std::size_t> sizes() const;

  // Of the program alone; those of `common` come beside them. What is parsed goes into this object, which has to stay
  // where it is, and validate() has to be called then. It throws UsageError for wrong values and combinations.
  boost::program_options::options_description description(const std::string& program);
  void validate();

 private:
  std::optional<std::string> given_min_, given_max_, given_least_;
  std::optional<double> given_factor_;
  std::optional<int> given_iterations_, given_warmup_;
  std::string type_ = "float";
};

}  // namespace perf
