// commands.hpp: what image-check does, a command each. Those that take argc and argv have argv[0], and their whole
// command line as text. They return the exit status, and throw multinode::UsageError for a wrong command line.
#pragma once

#include "site.hpp"
#include "statistics.hpp"

#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace image_check {

// run and baseline: the checks of a suite within its budget, whatever they do.

struct RunOptions {
  Suite suite = Suite::smoke;
  ClusterOptions cluster;
  std::filesystem::path site;  // file of the site; "": none
  std::filesystem::path folder = "image-check";
  std::vector<std::string> only;      // names of checks; none: all of the suite
  std::vector<std::string> required;  // what must not be skipped; "all": nothing
  int launches = 1;                   // of all checks; with more than 1, only checks that measure run
  double budget = 0;                  // seconds; 0: the suite's for each launch
  std::string command;                // that was given, for the head
  // Of the self-test:
  Command wrapper;      // before each program
  Command words;        // after each program's own
  Variables variables;  // for each program
  bool retry = true;    // a failed check, to see whether it is flaky
  double limit = 0;     // seconds for each check; 0: its own
  boost::program_options::options_description description();
};

// Writes the plan and a line a check to `out`; results.jsonl and the logs into the folder. Ends early, with the rest
// not run, after SIGINT or SIGTERM. Throws multinode::UsageError for what cannot be started at all.
Results run_checks(const RunOptions& options, std::ostream& out);

// compare: image A against image B: what differs, and what became worse.

struct CompareOptions {
  std::filesystem::path a, b;  // folders: A is the baseline: a session, or a folder of sessions
  std::filesystem::path folder = "image-check-compare";
  std::string again_a, again_b;       // what runs image-check in A and B; "": it cannot be asked again
  double loss = 100 * required_loss;  // percent that a metric must see, else it is no evidence
  double timeout = 1800;              // seconds for each fresh launch
  std::string command;
  boost::program_options::options_description description();
};

// A metric that looks worse is measured again: in fresh launches of A and B in turn. The result has a check for each
// metric and band, and those of B that failed. Throws multinode::UsageError for results that cannot be compared.
Results compare(const CompareOptions& options, std::ostream& out);

// node_command.cpp: is this node fit for a job? One line and an exit status, for the prolog or health check of a
// scheduler.

// Looks at this node alone, without a launcher, MPI, CUDA or network, and ends within the budget, also where the node
// hangs. Writes one line. Returns exit_right; exit_wrong: a finding, or no end; 3: could not test.
int check_node(int argc, char** argv, const std::string& command);

// The process that check_node() starts, and can end. Writes all findings of node_check/findings.hpp as JSON lines.
int look(int argc, char** argv, const std::string& command);

// paths: how fast is each pair of nodes? A matrix, in which slow pairs are marked and bad nodes named.

using Pair = std::pair<std::size_t, std::size_t>;  // of nodes, by number, the lower one first
using Matrix = std::map<Pair, double>;             // GB/s of each pair that was measured; 0: it failed

// Rounds of pairs that share no node, so that those of a round can be measured at once. Together all pairs of up to 32
// nodes; of more nodes, 8 rounds.
std::vector<std::vector<Pair>> rounds_of(std::size_t nodes);

struct SlowPaths {
  double good = 0, limit = 0;    // GB/s: what three quarters of the pairs do not exceed, and the part that is enough
  std::set<std::size_t> nodes;   // of whose pairs more than three quarters are below the limit
  std::set<Pair> pairs, others;  // below the limit: all of them, and those without these nodes
};
// The upper quartile stands for what is good, not the median, because a slow link in the middle slows most pairs.
SlowPaths find_slow(const Matrix& matrix, double at_least);

// A table with a row and a column per node. `*` marks slow pairs.
void print(const Matrix& matrix, const std::vector<std::string>& names, const SlowPaths& slow, std::ostream& out);

// Measures with chapter 02's alltoall_perf: all processes of one node send to all of the other. Returns exit_right, or
// exit_wrong, naming nodes and pairs on standard error. Throws multinode::UsageError for less than three nodes.
int paths(int argc, char** argv, const std::string& command);

// self-test: faults are planted, and every one has to be caught, by the detector that is meant to.

// Plants each fault in a run of one check, in which the detector that is meant to must find it, and nothing else may
// find anything. Returns exit_right, or exit_wrong for a fault that was missed, or caught by something else. A fault
// that cannot be planted here is reported and counted, and the exit status is then 3.
int self_test(int argc, char** argv, const std::string& command);

// The names of all faults.
std::vector<std::string> faults();

// Runs in place of a program, in each of its processes: plants a fault in rank 1, then becomes the program.
[[noreturn]] int plant(int argc, char** argv, const std::string& command);

}  // namespace image_check
