// options.hpp: the command line of pi.
#pragma once

#include "trapezoid.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace boost::program_options {
class options_description;
}

namespace trapezoid {

struct Options {
  std::int64_t n = 1'000'000'000;
  int warmup = 2, trials = 5, threads = 1;
  Isa isa = Isa::baseline;
  std::string device = "auto";
  int corrupt = -1;  // rank that loses a block; -1: none
  bool bench = false;

  boost::program_options::options_description description();  // parsing throws UsageError or HardwareAbsent
  void validate() const;                                      // throws UsageError
};

// The whole number of "1000", "1e9" or "64M" (powers of 1024), exactly. Otherwise throws UsageError with the name
// `option`.
std::int64_t parse_count(std::string_view text, std::string_view option);

// "auto" is the best of this CPU. Throws UsageError for an unknown name, HardwareAbsent if this CPU lacks the
// instructions.
Isa parse_isa(std::string_view name);

}  // namespace trapezoid
