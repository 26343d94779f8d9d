#include "options.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

namespace perf {

namespace po = boost::program_options;
using multinode::DataType;
using multinode::UsageError;

namespace {

constexpr std::size_t largest_size = std::size_t{1} << 50;
constexpr std::size_t most_sizes = 100'000;
constexpr int many = 1'000'000'000;

// In nccl-tests' order.
constexpr std::array types_in_order = {DataType::int8,    DataType::uint8,   DataType::int32,   DataType::uint32,
                                       DataType::int64,   DataType::uint64,  DataType::float16, DataType::float32,
                                       DataType::float64, DataType::bfloat16};
constexpr std::array redops_in_order = {Redop::sum, Redop::prod, Redop::max, Redop::min, Redop::avg};

UsageError wrong(const std::string& name, const std::string& allowed, const std::string& text) {
  return UsageError(name + " must be " + allowed + ", not '" + text + "'");
}

// All of `text` as a number from `low` to `high`.
template <class Number>
bool parse(std::string_view text, Number& number, Number low, Number high) {
  const auto value = multinode::number_of<Number>(text);
  number = value.value_or(number);
  return value && number >= low && number <= high;
}

// A group of options with its own title in --help.
class OptionGroup {
 public:
  explicit OptionGroup(const std::string& title) : group_(title) {}

  // `read` gets the option's text and its printed name, "-n (--iters)". `value` is what --help shows for the text.
  template <class Read>
  void add(const char* names, const std::string& value, const char* help, Read read) {
    group_.add_options()(names,
                         po::value<std::string>()->value_name(value)->notifier(
                             [read, name = printed(names)](const std::string& text) { read(text, name); }),
                         help);
  }

  template <class Number>
  void number(const char* names, Number& target, int low, int high, const char* help, bool* given = nullptr) {
    add(names, "N (=" + std::to_string(target) + ")", help,
        [=, &target](const std::string& text, const std::string& name) {
          if (!parse(text, target, Number(low), Number(high)))
            throw wrong(name, fmt::format("a whole number from {} to {}", low, high), text);
          if (given) *given = true;
        });
  }

  void size(const char* names, std::size_t& target, const char* help, bool& given) {
    add(names, "SIZE (=" + std::to_string(target >> 20) + "M)", help,
        [&target, &given](const std::string& text, const std::string& name) {
          target = multinode::parse_size(text, name);
          if (target < 1 || target > largest_size) throw wrong(name, "a size from 1 to 1048576G", text);
          given = true;
        });
  }

  // `target` gets the value beside the text. `allowed`: the texts in words.
  template <class Value>
  void choice(const char* names, const std::string& value, const std::map<std::string, Value>& choices, Value& target,
              const char* allowed, const char* help) {
    add(names, value, help, [=, &target](const std::string& text, const std::string& name) {
      const auto found = choices.find(text);
      if (found == choices.end()) throw wrong(name, allowed, text);
      target = found->second;
    });
  }

  void zero_or_one(const char* names, bool& target, const char* help) {
    choice(names, "0|1 (=0)", {{"0", false}, {"1", true}}, target, "0 or 1", help);
  }

  // `target` gets one of `known`, or all of them.
  template <class Values, class Value>
  void one_or_all(const char* names, const std::string& value, const Values& known, std::vector<Value>& target,
                  const char* help) {
    add(names, value, help, [&known, &target](const std::string& text, const std::string& name) {
      target.clear();
      for (const Value one : known)
        if (text == "all" || text == name_of(one)) target.push_back(one);
      const auto names_of_all = [](Value one) { return name_of(one); };
      if (target.empty()) throw wrong(name, "one of " + multinode::join(known, ", ", names_of_all) + " or all", text);
    });
  }

  void on(const char* names, bool& target, const char* help) {
    group_.add_options()(names, po::bool_switch(&target), help);
  }

  void file(const char* names, std::string& target, const char* help) {
    add(names, "FILE", help, [&target](const std::string& text, const std::string& name) {
      if (text.empty()) throw UsageError(name + " must be the name of a file");
      target = text;
    });
  }

  const po::options_description& options() const { return group_; }

 private:
  static std::string printed(const std::string& names) {
    const auto comma = names.find(',');
    if (comma == names.npos) return "--" + names;
    const std::string letter = "-" + names.substr(comma + 1);
    return comma == 0 ? letter : letter + " (--" + names.substr(0, comma) + ")";
  }

  po::options_description group_;
};

// "10" or "1:1M,10:64M": GB/s, and the size from which they are required.
std::vector<LeastBusbw> parse_least_busbw(const std::string& text, const std::string& name) {
  std::vector<LeastBusbw> bands;
  for (std::size_t begin = 0, end = 0; end != text.npos; begin = end + 1) {
    end = text.find(',', begin);
    const std::string band = text.substr(begin, end - begin);
    const auto colon = band.find(':');
    double gigabytes = 0;
    if (!parse(band.substr(0, colon), gigabytes, 1e-9, 1e9))
      throw wrong(name, "GB/s:SIZE, or a comma-separated list such as 1:1M,10:64M", text);
    const std::size_t size = colon == band.npos ? 0 : multinode::parse_size(band.substr(colon + 1), name);
    if (!bands.empty() && size <= bands.back().from_size)
      throw UsageError(name + ": the sizes in '" + text + "' must ascend");
    bands.push_back({gigabytes * 1e9, size});
  }
  return bands;
}

// The group of a process, from a text such as "MOD 8".
std::function<int(int)> parse_split(const char* variable, const std::string& text) {
  static const std::regex syntax(R"( *(AND|&|OR|\||MOD|%|DIV|/) *(0x([\da-f]{1,7})|0b([01]{1,30})|\d{1,9}) *)",
                                 std::regex::icase);
  if (std::smatch match; std::regex_match(text, match, syntax)) {
    const int value = match[3].matched   ? std::stoi(match[3], nullptr, 16)
                      : match[4].matched ? std::stoi(match[4], nullptr, 2)
                                         : std::stoi(match[2]);
    const int operation = std::toupper(match.str(1)[0]);
    if (operation == 'A' || operation == '&') return [=](int process) { return process & value; };
    if (operation == 'O' || operation == '|') return [=](int process) { return process | value; };
    if (value > 0 && (operation == 'M' || operation == '%')) return [=](int process) { return process % value; };
    if (value > 0) return [=](int process) { return process / value; };
  }
  throw wrong(variable, "AND, OR, MOD or DIV and a number, such as 'MOD 8'", text);
}

// The size after `size`, at most `largest`; 0 if there is none.
std::size_t next_size(std::size_t size, std::size_t largest, std::size_t step, double factor) {
  if (factor == 0) return step <= largest - size ? size + step : 0;
  const double next = std::floor(static_cast<double>(size) * factor);
  if (next > static_cast<double>(largest) || size == largest) return 0;
  return std::max(static_cast<std::size_t>(next), size + 1);
}

}  // namespace

po::options_description Options::description(const Collective& collective) {
  po::options_description known(std::string("Options of ") + collective.name + "_perf");

  OptionGroup sizes("Sizes");
  sizes.size("minbytes,b", min_bytes, "smallest size: bytes, or with K, M, G", given_.min_bytes);
  sizes.size("maxbytes,e", max_bytes, "largest size", given_.max_bytes);
  sizes.size("stepbytes,i", step_bytes, "add this to get the next size", given_.step_bytes);
  sizes.add("stepfactor,f", "X", "or multiply by this to get it",
            [this](const std::string& text, const std::string& name) {
              if (!parse(text, step_factor, 1 + 1e-6, 1e6))
                throw wrong(name, "a number above 1, at most 1000000", text);
            });
  sizes.on("sweep", sweep,
           "sizes from 8 to 64M, each twice the last (-b, -e, -i, -f override this); warm-up and iterations adapt to "
           "the size");

  OptionGroup operation("Operation");
  operation.one_or_all(
      "op,o", "OP (=sum)", redops_in_order, redops,
      collective.reduces ? "reduction: sum, prod, max, min, avg or all" : "ignored: this collective reduces nothing");
  operation.one_or_all("datatype,d", "TYPE (=float)", types_in_order, types,
                       "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16 or all");
  operation.add("root,r", "RANK (=0)", collective.rooted ? "root, or all" : "ignored: this collective has no root",
                [this](const std::string& text, const std::string& name) {
                  int rank = -1;
                  if (text != "all" && !parse(text, rank, -1, many)) throw wrong(name, "a rank or all", text);
                  root = rank == -1 ? std::nullopt : std::optional(rank);
                });

  OptionGroup performance("Performance");
  performance.number("ngpus,g", usage.ranks_per_thread, 1, 1024,
                     "ranks per thread: one GPU each over NCCL, on the CPU over Gloo");
  performance.number("nthreads,t", usage.threads, 1, 1024, "threads per process");
  performance.number("iters,n", iterations, 1, many, "timed calls", &given_.iterations);
  performance.number("warmup_iters,w", warmup, 0, many, "warm-up calls before them", &given_.warmup);
  performance.number("run_cycles,N", cycles, 0, many, "how often to repeat everything; 0: until the program is killed");
  performance.choice("average,a", "0|1|2|3 (=1)",
                     {{"0", Average::rank0}, {"1", Average::mean}, {"2", Average::min}, {"3", Average::max}}, average,
                     "0 (rank 0), 1 (mean), 2 (minimum) or 3 (maximum)",
                     "show the time of rank 0 (0), or the mean (1), minimum (2) or maximum (3) over the ranks");
  performance.number("cudagraph,G", usage.graph_launches, 0, 1'000'000,
                     "over NCCL: capture the calls as a CUDA graph, launch it N times");

  OptionGroup checks("Checks");
  checks.number("check,c", check, 0, many, "calls to check; 0: no check");
  checks.add("corrupt", "N", "rank that corrupts an element of its result, to see the check fail",
             [this](const std::string& text, const std::string& name) {
               int rank = 0;
               if (!parse(text, rank, 0, many))
                 throw wrong(name, fmt::format("a whole number from 0 to {}", many), text);
               corrupt = rank;
             });
  checks.add("min-busbw", "GB/s:SIZE",
             "exit with 1 if the bus bandwidth is lower, from this size on; such as 1:1M,10:64M",
             [this](const std::string& text, const std::string& name) { least_busbw = parse_least_busbw(text, name); });
  checks.add(",T", "SECONDS", "the same as --timeout", [this](const std::string& text, const std::string& name) {
    if (!parse(text, timeout_, 1e-3, 31'536'000.0))
      throw wrong(name, "seconds above 0, at most a year: every wait has a deadline here", text);
  });

  OptionGroup output("Output");
  output.file("output_file,J", output_file_, "the same as --json");
  output.file("csv", csv, "file to write the table to, for a spreadsheet: one line per size and placement");
  output.zero_or_one("per_iter_timing,I", per_iteration, "time each call separately");
  output.zero_or_one("report_timestamps,S", timestamps, "print the time of day in each row");

  for (const OptionGroup* group : {&sizes, &operation, &performance, &checks, &output}) known.add(group->options());
  return known;
}

void Options::validate() {
  if (const char* const mask = std::getenv("NCCL_TESTS_SPLIT_MASK"))
    usage.color = parse_split("NCCL_TESTS_SPLIT_MASK",
                              std::string("&") + (std::string_view(mask).starts_with("0x") ? "" : "0x") + mask);
  else if (const char* const split = std::getenv("NCCL_TESTS_SPLIT"))
    usage.color = parse_split("NCCL_TESTS_SPLIT", split);

  all_redops = redops.size() > 1;
  if (timeout_ > 0) common.timeout = std::chrono::milliseconds(std::llround(std::ceil(timeout_ * 1000)));
  if (!output_file_.empty()) {
    if (!common.json.empty() && common.json != output_file_)
      throw UsageError("-J (--output_file) and --json name different files: leave out one");
    common.json = output_file_;
  }
  if (!csv.empty() && csv == common.json)
    throw UsageError("--csv and --json name the same file: give each a file of its own");

  if (given_.step_bytes && step_factor > 0)
    throw UsageError("-i (--stepbytes) and -f (--stepfactor) are two ways to the next size: leave out one");
  if (sweep) {
    if (given_.iterations || given_.warmup)
      throw UsageError(
          "--sweep adapts the numbers of calls to each size: leave out -n (--iters) and -w "
          "(--warmup_iters), or --sweep");
    if (!given_.min_bytes) min_bytes = 8;
    if (!given_.max_bytes) max_bytes = 64 << 20;
    if (!given_.step_bytes && step_factor == 0) step_factor = 2;
  }
  if (min_bytes > max_bytes)
    throw UsageError(fmt::format("-b (--minbytes) is {}, above -e (--maxbytes), which is {}{}", min_bytes, max_bytes,
                                 given_.max_bytes ? "" : " by default"));
  const std::vector<std::size_t> all = sizes();
  if (all.size() > most_sizes)
    throw UsageError(
        fmt::format("more than {} sizes from -b (--minbytes) to -e (--maxbytes): take larger steps with -f "
                    "(--stepfactor) or -i (--stepbytes)",
                    most_sizes));
  for (const LeastBusbw& band : least_busbw)
    if (band.from_size > all.back())
      throw UsageError(
          fmt::format("--min-busbw: no size from {} on is measured, the largest is {}; see -e (--maxbytes)",
                      band.from_size, all.back()));
  if (per_iteration && usage.graph_launches > 0)
    throw UsageError(
        "-I (--per_iter_timing) cannot time single calls in a CUDA graph: leave out -I or -G (--cudagraph)");
}

std::vector<std::size_t> Options::sizes() const {
  std::vector<std::size_t> all;
  for (std::size_t size = min_bytes; size > 0 && all.size() <= most_sizes;
       size = next_size(size, max_bytes, step_bytes, step_factor))
    all.push_back(size);
  return all;
}

}  // namespace perf
