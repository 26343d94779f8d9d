// fashion_mnist_ways.hpp: the ways to start a program of this chapter that this build has, and what the tests of
// fashion_mnist train on.
#pragma once

#include "idx_files.hpp"

#include <test/support/faults.hpp>
#include <test/support/json_lines.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

using namespace multinode::testing;
using namespace std::chrono_literals;

inline std::vector<std::string> command(const std::string& program, std::vector<std::string> options) {
  options.insert(options.begin(), program);
  return options;
}

struct Way {
  Starter starter;

  Ranks::End run(const std::string& program, int ranks, const std::vector<std::string>& options,
                 std::chrono::milliseconds timeout = patience) const {
    return Ranks(starter, ranks, command(program, options)).wait(timeout);
  }
};

inline std::string name_of_way(const ::testing::TestParamInfo<Way>& info) { return name_of(info.param.starter); }

inline std::vector<Way> ways() {
  std::vector<Way> all;
#ifdef MULTINODE_HAVE_MPI
  all.push_back({Starter::mpirun});
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.push_back({Starter::bare});
#endif
#if defined(MULTINODE_HAVE_GLOO) && defined(PATH_mnrun)
  setenv("MNRUN", PATH_mnrun, 1);
  all.push_back({Starter::mnrun});
#endif
  return all;
}

// Without mnrun, which uses the same library as bare processes.
inline std::vector<Way> one_way_a_library() {
  std::vector<Way> some = ways();
  std::erase_if(some, [](const Way& way) { return way.starter == Starter::mnrun; });
  return some;
}

// For what does not depend on the way: mpirun takes a second to end what failed.
inline Way quickest_way() {
  for (const Way& way : ways())
    if (way.starter == Starter::bare) return way;
  return ways().front();
}

// All of these numbers of ranks in the quickest way, the last of them in the others.
inline std::vector<int> counts_for(const Way& way, std::vector<int> counts) {
  if (way.starter != quickest_way().starter) counts.erase(counts.begin(), counts.end() - 1);
  return counts;
}

// What a run that must succeed prints, and what it writes with --json behind the fingerprint.
struct Results {
  std::string output;
  std::vector<nlohmann::json> lines;
};
inline Results results(const Way& way, const std::string& program, int ranks, std::vector<std::string> options) {
  const TemporaryFolder folder;
  options.insert(options.end(), {"--json", folder / "results.json"});
  const Ranks::End end = way.run(program, ranks, options);
  EXPECT_EQ(end.status, 0) << end.output;
  std::vector<nlohmann::json> lines = json_lines(folder / "results.json");
  if (lines.empty()) throw std::runtime_error("no results");
  EXPECT_EQ(lines.at(0).at("fingerprint").at("world_size"), ranks);
  lines.erase(lines.begin());
  return {end.output, lines};
}

// Bad command lines are refused with exit status 2, and one line that says why.
struct BadCommandLine {
  std::vector<std::string> command;
  std::string says;
};
inline void expect_refused(const std::vector<BadCommandLine>& cases, int ranks = 1) {
  for (const auto& [command, says] : cases) {
    SCOPED_TRACE(command.front() + ": " + says);
    const Ranks::End end = Ranks(quickest_way().starter, ranks, command).wait();
    EXPECT_EQ(end.status, 2) << end.output;
    EXPECT_EQ(occurrences(end.output, says), 1u) << end.output;
  }
}

// The hash that a training ends with.
inline std::string parameters_in(const std::string& output) {
  const Match match = match_in(output, "parameters:? ([0-9a-f]{16}) on every rank");
  EXPECT_FALSE(match.empty()) << output;
  return match.empty() ? "" : match[1];
}

using Settings = std::map<std::string, std::string>;  // options and their values; "": a switch

// Options of fashion_mnist for a small data set of the tests: epochs of 11 steps, the last of each with one image, so
// that all ranks but one have none.
inline std::vector<std::string> learn(Settings settings = {}) {
  struct Images : TemporaryFolder {
    Images() { write_data_set(path(), 301, 101, true); }
  };
  static const Images images;
  settings.insert({{"--data", images.path()}, {"--epochs", "3"}, {"--batch-size", "30"}, {"--learning-rate", "0.02"}});
  std::vector<std::string> options;
  for (const auto& [name, value] : settings) {
    options.push_back(name);
    if (!value.empty()) options.push_back(value);
  }
  return options;
}
