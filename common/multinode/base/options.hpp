// options.hpp: strict parsing of the command line, and the options that all programs share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/check.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace boost::program_options {
class options_description;
}

namespace multinode {

// Of this project, such as "1.0.0": what --version prints and every JSON line has.
std::string version();

// Options with the same name and meaning in every program.
struct CommonOptions {
  std::string backend = "auto";               // --backend auto|mpi|nccl|gloo
  std::chrono::milliseconds timeout{60'000};  // --timeout SECONDS, deadline of every blocking wait
  std::string rendezvous;                     // --rendezvous tcp:HOST:PORT|file:PATH
  std::string json;                           // --json FILE
  std::uint64_t seed = 1;                     // --seed

  // Parsing writes to this object, which must outlive the description.
  boost::program_options::options_description description();
};

// Parses argv with the options `known`, --help and --version; abbreviated options and positional arguments are errors.
// Returns false if --help or --version was given, and then prints that on standard output if `prints`. Throws
// UsageError, one line that names the option.
bool parse_command_line(int argc, const char* const* argv, const boost::program_options::options_description& known,
                        bool prints);

// The number in "512", "64M" or "4G" (powers of 1024). Throws UsageError with the name `option`.
std::size_t parse_size(std::string_view text, std::string_view option);

namespace detail {
[[noreturn]] void out_of_range(std::string_view option, const std::string& value, const std::string& low,
                               const std::string& high);
}

// Throws UsageError "OPTION must be from LOW to HIGH, not VALUE" unless low <= value <= high.
template <class Number>
void require_range(std::string_view option, Number value, Number low, Number high) {
  if (!(value >= low && value <= high))
    detail::out_of_range(option, std::to_string(value), std::to_string(low), std::to_string(high));
}

}  // namespace multinode
