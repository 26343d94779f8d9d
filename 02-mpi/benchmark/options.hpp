// options.hpp: nccl-tests' command line, strictly parsed, and what this benchmark adds.
#pragma once

#include "ranks.hpp"
#include "results.hpp"

#include <multinode/base/options.hpp>

#include <optional>
#include <string>
#include <vector>

namespace perf {

enum class Average { rank0, mean, min, max };  // -a: how the ranks' times become one

struct Options {
  std::size_t min_bytes = 32 << 20, max_bytes = 32 << 20, step_bytes = 1 << 20;
  double step_factor = 0;  // 0: steps of step_bytes
  int iterations = 20, warmup = 1, check = 1;
  int cycles = 1;  // 0: until the program is killed
  std::vector<multinode::DataType> types{multinode::DataType::float32};
  std::vector<Redop> redops{Redop::sum};
  bool all_redops = false;      // -o all: those that the backend supports
  std::optional<int> root = 0;  // nullopt: all
  Average average = Average::mean;
  bool timestamps = false, per_iteration = false;
  Usage usage;

  bool sweep = false;
  std::string csv;                      // --csv FILE
  std::optional<int> corrupt;           // the rank that corrupts an element
  std::vector<LeastBusbw> least_busbw;  // in order of from_size
  multinode::CommonOptions common;

  // Sizes of -b, -e, -i, -f in order. At least one.
  std::vector<std::size_t> sizes() const;

  // Of the program alone; those of `common` come beside them. What is parsed goes into this object, which has to stay
  // where it is. Wrong values throw UsageError while the command line is parsed.
  boost::program_options::options_description description(const Collective& collective);
  void validate();  // checks combinations of options; throws UsageError

 private:
  struct {
    bool min_bytes = false, max_bytes = false, step_bytes = false, iterations = false, warmup = false;
  } given_;
  double timeout_ = 0;  // -T
  std::string output_file_;
};

}  // namespace perf
