// results.hpp: the result of one tuple of independent variables, and how it is shown: as nccl-tests' table and as JSON
// lines, with the same numbers.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace perf {

// Times are seconds per call, bandwidths bytes per second.
struct Result {
  std::string collective;  // all_reduce
  std::string backend;     // mpi, gloo, nccl
  int ranks = 1;
  std::size_t asked_size = 0;  // of -b, -e ..., or --sweep
  std::size_t size = 0;        // bytes of the larger buffer: asked_size, rounded down to whole elements of each rank
  std::size_t count = 0;       // elements of a block, as nccl-tests has it
  std::string type;            // float
  std::string redop;           // sum; "none"
  bool in_place = false;
  int cycle = 0;                       // of -N
  int iterations = 0;                  // timed calls
  int calls_per_sample = 1;            // calls that were timed as one
  double time = 0;                     // mean over the calls and the ranks
  double median = 0, p99 = 0;          // over samples; mean over the ranks
  std::optional<double> algbw;         // none on emulated GPUs, where it means nothing
  std::optional<double> busbw;         // none: the same; one rank uses no link
  std::optional<std::uint64_t> wrong;  // elements, over all ranks; none: not checked
  // After a barrier, each rank's time until its own call is done (its median over a few calls).
  std::vector<double> rank_times;
  std::optional<double> spread;  // (max - min) / median of rank_times; none of one rank
  std::vector<int> late;         // ranks whose rank_times are outliers
};

// A JSON object, one line; the names are those of the schema in reference.md. Times there are microseconds, bandwidths
// GB/s (1e9 bytes), spread percent, all with all their digits. null: bandwidths, wrong and spread (of one rank) where
// they do not exist.
nlohmann::json to_json(const Result& result);

// Four significant digits, but at most four decimals, and all of a whole number: 0.0012, 1.235, 123.5, 12346.
std::string four_digits(double value);
std::string size_text(std::size_t bytes);  // "8 B", "1.5 KiB", "64 MiB"

// --min-busbw: what is required from a size on.
struct LeastBusbw {
  double bytes_per_second = 0;
  std::size_t from_size = 0;
};

// One line for each result that is slower, or one if no result from that size on (asked_size) has a bus bandwidth.
std::vector<std::string> too_slow(std::span<const Result> results, const LeastBusbw& least);

// The table has nccl-tests' columns, in its order, so that what reads its tables reads these; behind them median, p99
// and spread of out of place and in place. What does not exist is "n/a"; late ranks are named on comment lines below
// their row. The numbers are those of the JSON, rounded to four_digits.
void print_head(std::ostream& out);
// The result out of place and, unless the library has no such call, the one in place. Flushes.
void print_row(std::ostream& out, std::span<const Result> places);
// "# Out of bounds values : 0 OK" (or "3 FAILED", or "not checked") and "# Avg bus bandwidth    : 12.3" (or n/a).
void print_foot(std::ostream& out, const std::vector<Result>& all);

}  // namespace perf
