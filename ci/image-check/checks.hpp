// checks.hpp: what an image is asked: a list of programs, what each needs, and how its answer is read.
#pragma once

#include "cluster.hpp"
#include "results.hpp"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace image_check {

enum class Suite { smoke, gate, deep };      // each has the checks of those before it
Suite parse_suite(const std::string& name);  // throws multinode::UsageError
const char* name_of(Suite suite);
double budget_seconds(Suite suite);  // 60, 300, 1800

enum class Where {
  everywhere,     // processes_per_node on each node
  one_each,       // one process on each node
  first_process,  // one process on the first node, without a launcher
};

enum class Need { mpi, gloo, gpu, rdma, images, several_nodes, three_nodes, several_processes };

// What a JSON line of the program measured; nothing: it is no such line.
using Reader = std::function<std::optional<Sample>(const nlohmann::json& line)>;

struct Check {
  std::string name;
  std::string title;
  Suite from = Suite::smoke;  // the smallest suite that has it
  std::string program;        // CHAPTER/PROGRAM
  // {json}: file for its JSON lines; {timeout}: seconds that a rank may wait; {folder}: one for its files;
  // {examples}, {nodes} (A,B,...) and {launcher}; {skip ssh}: --skip ssh where the launcher needs no ssh;
  // {launch:CHAPTER/PROGRAM ...}: that, started on all nodes
  std::vector<std::string> arguments{};
  Where where = Where::everywhere;
  std::vector<Need> needs{};
  double seconds = 1;  // that it takes, about, on one node; see seconds_on()
  double limit = 30;   // that it may take on one node; see limit_on()
  Action action = Action::look;
  Variables variables{};
  int exit_status = 0;                                         // that a right run has
  std::vector<std::string> says{};                             // regular expressions that its output must match
  std::vector<std::pair<std::string, std::string>> answers{};  // keys of a JSON line, and what they must be
  bool transport = false;                                      // over what MPI or NCCL sends is looked at
  Reader read{};                                               // what it measures: a baseline repeats such checks
};

// All of them, in the order in which they run.
const std::vector<Check>& all_checks();

// To start and connect processes takes longer the more nodes there are.
double seconds_on(const Check& check, const Cluster& cluster);
double limit_on(const Check& check, const Cluster& cluster);

// Why it cannot run here; nothing: it can.
std::optional<std::string> cannot_run(const Check& check, const Cluster& cluster);

struct Judged {
  std::vector<Finding> findings;  // none: right
  std::vector<Sample> samples;
  std::vector<Fact> facts;
  bool absent = false;  // the program itself said that hardware is missing (77)
  std::string reason;
};
// Judges what a run of `check` left: its outcome, its output and its JSON lines.
Judged judge(const Check& check, const Cluster& cluster, const Outcome& outcome, const std::filesystem::path& log,
             const std::filesystem::path& json, const std::set<std::string>& disabled);

}  // namespace image_check
