// checks.hpp: a check: a program, what it needs, and how its answer is judged. checks.json is the table of all checks,
// which site.cpp reads.
#pragma once

#include "cluster.hpp"
#include "results.hpp"

#include <nlohmann/json.hpp>

#include <regex.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace image_check {

// A T of JSON, with the members of a new T where there are none. nlohmann's macro for that is newer than
// Ubuntu 22.04's.
template <class T>
T with_defaults(const nlohmann::json& given) {
  nlohmann::json all = T{};
  all.update(given);
  return all.get<T>();
}

enum class Suite { smoke, gate, deep, none };  // each has the checks of those before it; none: only --only runs it
Suite parse_suite(const std::string& name);    // throws multinode::UsageError
const char* name_of(Suite suite);
double budget_seconds(Suite suite);  // 60, 300, 1800

enum class Where {
  everywhere,     // processes_per_node on each node
  one_each,       // one process on each node
  first_process,  // one process on the first node, without a launcher
};

enum class Need { mpi, gloo, gpu, rdma, images, several_nodes, three_nodes, several_processes };

// What a metric must reach on nodes of a kind.
struct Threshold {
  std::string nodes;   // regular expression
  std::string metric;  // "memory_bandwidth", or with its size: "all_reduce bus bandwidth, mpi, 1 MiB"
  double value;
  bool least;  // else most
};

constexpr double any_busy = 1e9;

struct Check {
  std::string name{};
  std::string title{};
  Suite from = Suite::smoke;  // the smallest suite that has it
  std::string program{};      // CHAPTER/PROGRAM; of a command sh
  std::string command{};      // for sh, or ""
  // {json}: file for its JSON lines; {common}: --timeout and --json; {examples}, {nodes} (A,B,...), {processes} and
  // {launcher}; {launch}: what starts the words behind it on all nodes
  std::string arguments{};
  Where where = Where::everywhere;
  std::vector<Need> needs{};
  double seconds = 1;  // that it takes, about, on one node; see seconds_on()
  double limit = 30;   // that it may take on one node; see limit_on()
  // Of the node (Cluster::busy): else it is left out, because its processes wait for each other.
  double most_busy = any_busy;
  Action action = Action::investigate;
  Variables variables{};
  int exit_status = 0;                           // that a right run has
  std::vector<std::string> says{};               // patterns that lines of its output must match
  std::map<std::string, std::string> answers{};  // keys of a JSON line, and what they must be
  bool transport = false;                        // over what MPI sends is looked at
  nlohmann::json measures{};  // how values are read, as in reference.md; a baseline repeats checks that measure
  std::vector<Threshold> thresholds{};
};

inline bool suffers(const Check& check) { return check.most_busy < any_busy; }

// To start and connect processes takes longer the more nodes there are, and the busier this one is.
double seconds_on(const Check& check, const Cluster& cluster);
double limit_on(const Check& check, const Cluster& cluster);
inline constexpr double deadlines = 3;  // of a program's own (--timeout) fit into its limit

// A text without its quotes, anything else as JSON.
std::string as_text(const nlohmann::json& value);

// The text with {key} replaced by the value of that key, for every key that the object `values` has.
std::string filled(std::string text, const nlohmann::json& values);

// A site's pattern for output that is as long as it likes: a POSIX extended regular expression, which libc matches in
// the square of a line's length at most; std::regex takes its cube for three ".*", and a call for each letter.
struct Pattern {
  explicit Pattern(const std::string& text);  // throws std::runtime_error for what is none, also \d and \1
  // Of each match in a line, its first group, or all of it if there is none.
  std::vector<std::string> found_in(const std::string& lines) const;
  std::shared_ptr<regex_t> compiled;
};

// Why it cannot run here; nothing: it can.
std::optional<std::string> cannot_run(const Check& check, const Cluster& cluster);

struct Judged {
  std::vector<Finding> findings;  // none: right
  std::vector<Sample> samples;
  std::vector<Fact> facts;
  bool absent = false;            // the program itself said that hardware is missing (77)
  bool late = false;              // a deadline ended it: ours or its own
  bool started = true;            // false: the launcher did not start what was asked for, so that no node is to blame
  bool busy = false;              // other work kept a node from it: neither right nor wrong
  std::set<std::string> hosts{};  // that took part, by their own names
  std::string reason;             // why it is absent or busy
  double other_work = -1;         // as in CheckResult
};
// Judges what a run of `check` left: its outcome, its output and its JSON lines.
Judged judge(const Check& check, const Cluster& cluster, const Outcome& outcome, const std::filesystem::path& log,
             const std::filesystem::path& json);

}  // namespace image_check
