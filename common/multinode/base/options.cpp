// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>

#include <charconv>
#include <cmath>
#include <iostream>

namespace multinode {

namespace po = boost::program_options;

std::string version() { return MULTINODE_VERSION; }

po::options_description CommonOptions::description() {
  po::options_description known("Options of every program");
  auto set_timeout = [this](double seconds) {
    // A year does not overflow, and is long enough for "no deadline".
    if (!(seconds > 0 && seconds <= 31'536'000))
      throw UsageError("--timeout must be a number of seconds above 0, at most 31536000 (a year)");
    timeout = std::chrono::milliseconds(std::llround(std::ceil(seconds * 1000)));
  };
  known.add_options()("backend", po::value(&backend)->default_value(backend),
                      "communication library: auto, mpi, nccl or gloo")(
      "timeout", po::value<double>()->default_value(60, "60")->notifier(set_timeout),
      "deadline of every wait for another rank, in seconds")(
      "rendezvous", po::value(&rendezvous),
      "where the ranks meet: tcp:HOST:PORT of rank 0, or file:PATH; default: set by the launcher")(
      "json", po::value(&json), "file to write results to, one JSON object per line")(
      "seed", po::value(&seed)->default_value(seed), "seed for all random numbers");
  return known;
}

bool parse_command_line(int argc, const char* const* argv, const po::options_description& known, bool prints) {
  po::options_description all;
  all.add(known).add_options()("help,h", "print this text")("version", "print the version");
  // By default Boost accepts "--time 3" for --timeout and ignores positional arguments.
  const int strict = po::command_line_style::unix_style ^ po::command_line_style::allow_guessing;
  try {
    const auto words = po::command_line_parser(argc, argv).options(all).positional({}).style(strict).run();
    for (const auto& option : words.options) {  // Boost takes -1 for the largest unsigned number
      const auto* const known_as = all.find_nothrow(option.string_key, false);
      if (known_as && dynamic_cast<const po::typed_value<std::uint64_t>*>(known_as->semantic().get()) &&
          !option.value.empty() && option.value[0].starts_with('-'))
        throw UsageError("--" + option.string_key + " must not be negative, as " + option.value[0] + " is; see --help");
    }
    po::variables_map given;
    po::store(words, given);
    if (given.count("help")) {
      if (prints) std::cout << all << std::flush;
      return false;
    }
    if (given.count("version")) {
      if (prints) std::cout << "multi-node-cpp " << version() << std::endl;
      return false;
    }
    po::notify(given);
  } catch (const po::too_many_positional_options_error&) {
    throw UsageError("only options are expected, no other words; see --help");
  } catch (const po::error& e) {
    throw UsageError(std::string(e.what()) + "; see --help");
  }
  return true;
}

std::size_t parse_size(std::string_view text, std::string_view option) {
  std::size_t number = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  const std::string_view suffix(after, static_cast<std::size_t>(end - after));
  const int shift = suffix.empty() ? 0 : suffix == "K" ? 10 : suffix == "M" ? 20 : suffix == "G" ? 30 : -1;
  if (error != std::errc() || shift < 0 || number > (SIZE_MAX >> shift))
    throw UsageError(std::string(option) + " must be a size such as 512, 64K, 64M or 4G, not '" + std::string(text) +
                     "'");
  return number << shift;
}

void detail::out_of_range(std::string_view option, const std::string& value, const std::string& low,
                          const std::string& high) {
  throw UsageError(std::string(option) + " must be from " + low + " to " + high + ", not " + value);
}

}  // namespace multinode
