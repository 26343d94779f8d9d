#include "options.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace perf {

namespace po = boost::program_options;
using multinode::DataType;
using multinode::require_range;
using multinode::UsageError;

namespace {

constexpr std::size_t largest_size = std::size_t{1} << 50;
constexpr std::size_t most_sizes = 100'000;
constexpr int many = 1'000'000'000;

std::vector<DataType> parse_types(const std::string& text) {
  std::vector<DataType> types;
  for (const DataType type : multinode::data_types)
    if (text == "all" || text == name_of(type)) types.push_back(type);
  if (types.empty())
    throw UsageError("--datatype must be one of " +
                     multinode::join(multinode::data_types, ", ", [](DataType type) { return name_of(type); }) +
                     " or all, not '" + text + "'");
  return types;
}

// "10:1M": GB/s, and the size from which they are required; or "10", from every size.
LeastBusbw parse_least_busbw(const std::string& text) {
  const auto colon = text.find(':');
  const double gigabytes = multinode::number_of<double>(text.substr(0, colon)).value_or(0);
  if (!(gigabytes >= 1e-9 && gigabytes <= 1e9))
    throw UsageError("--min-busbw must be GB/s:SIZE, such as 10:1M, not '" + text + "'");
  return {gigabytes * 1e9, colon == text.npos ? 0 : multinode::parse_size(text.substr(colon + 1), "--min-busbw")};
}

std::size_t parse_bytes(const std::string& text, const char* option) {
  const std::size_t bytes = multinode::parse_size(text, option);
  if (bytes < 1 || bytes > largest_size)
    throw UsageError(fmt::format("{} must be from 1 to 1048576G, not {}", option, text));
  return bytes;
}

// The size after `size`, at most `largest`; 0 if there is none.
std::size_t next_size(std::size_t size, std::size_t largest, double factor) {
  constexpr std::size_t step = 1 << 20;
  if (factor == 0) return step <= largest - size ? size + step : 0;
  const double next = std::floor(static_cast<double>(size) * factor);
  if (next > static_cast<double>(largest) || size == largest) return 0;
  return std::max(static_cast<std::size_t>(next), size + 1);
}

}  // namespace

po::options_description Options::description(const std::string& program) {
  const auto given = [](auto& target, const char* shown) { return multinode::given(target)->value_name(shown); };
  const auto number = [](int& target) { return po::value(&target)->value_name("N")->default_value(target); };
  po::options_description known("Options of " + program);
  known.add_options()                                                                                            //
      ("minbytes,b", given(given_min_, "SIZE (=32M)"), "smallest size: bytes, or with K, M, G")                  //
      ("maxbytes,e", given(given_max_, "SIZE (=32M)"), "largest size")                                           //
      ("stepfactor,f", given(given_factor_, "X"), "multiply by this to get the next size; default: add 1M")      //
      ("sweep", po::bool_switch(&sweep),                                                                         //
       "8 to 64M, each twice the last (-b, -e, -f override this); warm-up and iterations adapt to the size")     //
      ("datatype,d", po::value(&type_)->value_name("TYPE")->default_value(type_),                                //
       "float, double, half, bfloat16, int8, uint8, int32, uint32, int64, uint64 or all")                        //
      ("ngpus,g", number(ranks_per_process), "ranks per process: one GPU each over NCCL, on the CPU over Gloo")  //
      ("iters,n", given(given_iterations_, "N (=20)"), "timed calls")                                            //
      ("warmup_iters,w", given(given_warmup_, "N (=1)"), "warm-up calls before them")                            //
      ("run_cycles,N", number(cycles), "how often to repeat everything; 0: until the program is killed")         //
      ("check,c", number(check), "calls to check; 0: no check")                                                  //
      ("corrupt", given(corrupt, "RANK"), "rank that corrupts an element of its result, to see the check fail")  //
      ("min-busbw", given(given_least_, "GB/s:SIZE"),                                                            //
       "exit with 1 if the bus bandwidth is lower, from this size on; such as 10:1M");
  return known;
}

void Options::validate() {
  types = parse_types(type_);
  require_range("--ngpus", ranks_per_process, 1, 1024);
  if (sweep && (given_iterations_ || given_warmup_))
    throw UsageError(
        "--sweep adapts the numbers of calls to each size: leave out -n (--iters) and -w (--warmup_iters), or --sweep");
  iterations = given_iterations_.value_or(iterations);
  warmup = given_warmup_.value_or(warmup);
  require_range("--iters", iterations, 1, many);
  require_range("--warmup_iters", warmup, 0, many);
  require_range("--run_cycles", cycles, 0, many);
  require_range("--check", check, 0, many);

  min_bytes = given_min_ ? parse_bytes(*given_min_, "--minbytes") : sweep ? 8 : min_bytes;
  max_bytes = given_max_ ? parse_bytes(*given_max_, "--maxbytes") : sweep ? 64 << 20 : max_bytes;
  step_factor = given_factor_.value_or(sweep ? 2 : 0);
  if (given_factor_ && !(step_factor >= 1 + 1e-6 && step_factor <= 1e6))
    throw UsageError(fmt::format("--stepfactor must be a number above 1, at most 1000000, not {}", step_factor));
  if (given_least_) least_busbw = parse_least_busbw(*given_least_);
  if (min_bytes > max_bytes)
    throw UsageError(fmt::format("-b (--minbytes) is {}, above -e (--maxbytes), which is {}{}", min_bytes, max_bytes,
                                 given_max_ ? "" : " by default"));
  const std::vector<std::size_t> all = sizes();
  if (all.size() > most_sizes)
    throw UsageError(fmt::format(
        "more than {} sizes from -b (--minbytes) to -e (--maxbytes): take larger steps with -f (--stepfactor)",
        most_sizes));
  if (least_busbw && least_busbw->from_size > all.back())
    throw UsageError(fmt::format("--min-busbw: no size from {} on is measured, the largest is {}; see -e (--maxbytes)",
                                 least_busbw->from_size, all.back()));
}

std::vector<std::size_t> Options::sizes() const {
  std::vector<std::size_t> all;
  for (std::size_t size = min_bytes; size > 0 && all.size() <= most_sizes;
       size = next_size(size, max_bytes, step_factor))
    all.push_back(size);
  return all;
}

}  // namespace perf
