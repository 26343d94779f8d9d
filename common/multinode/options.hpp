// options.hpp: the command line, strictly; and the options that all programs share.
#pragma once

#include <multinode/check.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace boost::program_options {
class options_description;
}

namespace multinode {

// Options with the same name and meaning in every program.
struct CommonOptions {
  std::string backend = "auto";               // --backend auto|mpi|nccl|gloo
  std::chrono::milliseconds timeout{60'000};  // --timeout SECONDS, of every blocking wait
  std::string rendezvous;                     // --rendezvous tcp:HOST:PORT|file:PATH
  std::string json;                           // --json FILE
  std::uint64_t seed = 1;                     // --seed

  boost::program_options::options_description description();
};

// Parses argv by `known`, to which it adds --help; abbreviations and stray words are refused. True: go on. False:
// --help was asked for, and printed on standard output if `talk`. Throws UsageError, one line that names the option.
bool parse_command_line(int argc, const char* const* argv, const boost::program_options::options_description& known,
                        bool talk);

// "512", "64M", "4G" (powers of 1024), for an option's value; throws UsageError naming `option`.
std::size_t parse_size(std::string_view text, std::string_view option);

// Throws UsageError "--option must be at least ..., not ..." unless low <= value <= high.
template <class Number>
void require_range(std::string_view option, Number value, Number low, Number high);

namespace detail {
[[noreturn]] void out_of_range(std::string_view option, const std::string& value, const std::string& low,
                               const std::string& high);
}

template <class Number>
void require_range(std::string_view option, Number value, Number low, Number high) {
  if (!(value >= low && value <= high))
    detail::out_of_range(option, std::to_string(value), std::to_string(low), std::to_string(high));
}

}  // namespace multinode
