#include "options.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/text.hpp>

#include <algorithm>
#include <charconv>

namespace trapezoid {

namespace po = boost::program_options;

po::options_description Options::description() {
  const std::string isas = "instruction set: auto, " + std::string(name_of(Isa::baseline)) + ", avx2 or avx512";
  const auto set_n = [this](const std::string& text) { n = parse_count(text, "--n"); };
  const auto set_isa = [this](const std::string& name) { isa = parse_isa(name); };
  po::options_description known("Options of pi");
  auto add = known.add_options();
  add("n", po::value<std::string>()->default_value("1e9")->notifier(set_n),
      "number of intervals, such as 1000000, 1e9 or 64M");
  add("warmup", po::value(&warmup)->default_value(warmup), "runs that are not timed");
  add("trials", po::value(&trials)->default_value(trials), "runs that are timed");
  add("threads", po::value(&threads)->default_value(threads), "threads of each process");
  add("isa", po::value<std::string>()->default_value("auto")->notifier(set_isa), isas.c_str());
  add("device", po::value(&device)->default_value(device),
      "device that computes the sums: cpu, gpu, or auto (gpu with --backend nccl, else cpu)");
  add("corrupt", po::value(&corrupt), "rank that loses one of its blocks, to show that the check can fail");
  add("bench", po::bool_switch(&bench),
      "compare the speed of the inner loop with that of this CPU's division unit, in one process");
  return known;
}

void Options::validate() const {
  multinode::require_range<std::int64_t>("--n", n, 1, largest_n);
  multinode::require_range("--warmup", warmup, 0, 1'000'000);
  multinode::require_range("--trials", trials, 1, 1'000'000'000);
  multinode::require_range("--threads", threads, 1, 1024);
  if (device != "auto" && device != "cpu" && device != "gpu")
    throw multinode::UsageError("--device must be auto, cpu or gpu, not '" + device + "'");
}

Isa parse_isa(std::string_view name) {
  const std::vector<Isa> here = available_isas();
  if (name == "auto") return here.back();
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
    if (name == name_of(isa)) {
      if (std::find(here.begin(), here.end(), isa) != here.end()) return isa;
      throw multinode::HardwareAbsent("--isa " + std::string(name) + ": this CPU does not have it");
    }
  throw multinode::UsageError("--isa must be auto, " + std::string(name_of(Isa::baseline)) + ", avx2 or avx512, not '" +
                              std::string(name) + "'");
}

std::int64_t parse_count(std::string_view text, std::string_view option) {
  const auto wrong = [&] {
    return multinode::UsageError(std::string(option) + " must be a whole number such as 1000000, 1e9 or 64M, not '" +
                                 std::string(text) + "'");
  };
  const auto whole = [&](std::string_view digits) {
    const auto number = multinode::number_of<std::int64_t>(digits);
    if (!number || *number < 0) throw wrong();
    return *number;
  };
  std::int64_t number = 0, power = 0, factor = 10;
  if (const auto e = text.find_first_of("eE"); e != text.npos) {
    number = whole(text.substr(0, e));
    power = whole(text.substr(e + 1));
  } else if (const auto suffix = std::string_view("KMG").find(text.empty() ? '-' : text.back()); suffix != text.npos) {
    number = whole(text.substr(0, text.size() - 1));
    power = static_cast<std::int64_t>(suffix) + 1;
    factor = 1024;
  } else {
    number = whole(text);
  }
  for (; number > 0 && power > 0; --power)
    if (__builtin_mul_overflow(number, factor, &number)) throw wrong();
  return number;
}

}  // namespace trapezoid
