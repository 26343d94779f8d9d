// results.hpp: what an image check did and found: results.jsonl, one JSON object a line, written as it happens.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/base/text.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace image_check {

enum class Status {
  pass,
  fail,
  timeout,  // a failure: had to be ended
  flaky,    // failed, and not when tried again: no pass
  skip,     // what it needs is not here
  not_run,  // the run ended before it, its time was used up, or other work kept a node busy
};

std::string name_of(Status status);  // "pass" ..., as in results.jsonl

// The one with that name, by its place in `names`. Throws std::runtime_error. NLOHMANN_JSON_SERIALIZE_ENUM would read
// an unknown text as the first one: a pass.
template <class Enum>
Enum one_of(const std::string& text, const std::vector<std::string>& names) {
  const auto at = std::ranges::find(names, text);
  if (at == names.end()) throw std::runtime_error("'" + text + "' is none of " + multinode::join(names));
  return static_cast<Enum>(at - names.begin());
}

// The reason of a skip that says nothing of the image.
inline constexpr const char* left_out_busy = "left out, because this node is busy; --only NAME runs it";

// What is to be done about a failure, the most severe first.
enum class Action { replace_node, drain, reboot, investigate, none };
std::string words(Action action);  // "replace the node" ...

struct Finding {
  std::string detector;  // which judgement says so: exit status, data, deadline, transport, versions, speed ...
  std::string text;
  std::string node;  // the host that is to blame, or ""
};

// One run of one check.
struct CheckResult {
  std::string check{};  // its name
  std::string title{};  // what it shows, a few words
  Status status = Status::not_run;
  Action action = Action::none;
  double seconds = 0;
  int launch = 0;
  std::vector<std::string> nodes{};  // that it ran on
  std::string command{};             // for a shell: what reproduces it
  std::vector<Finding> findings{};   // why it is no pass
  std::string reason{};              // of skip and not_run
  std::string log{};                 // file of its output, beside results.jsonl
  double other_work = -1;            // share of the CPU time that other processes took; -1: unknown
};

// One measured value. Its name, band and node together say what was measured.
struct Sample {
  std::string check{};
  std::string metric{};    // "all_reduce bus bandwidth, mpi"
  double band_bytes = -1;  // size band of a curve; -1: the metric is one value
  std::string unit{};      // "GB/s"
  std::string better{};    // "more" or "less"
  double value = 0;
  int launch = 0;      // values of one launch share its luck
  std::string node{};  // host, "A - B" for a pair of hosts, or "": of all together
  double other_work = -1;
};

// What a node has, and has to keep: devices, limits, sizes.
struct Fact {
  std::string check, name, value;
  std::string node;
};

// True if two values of a fact mean the same. Those that follow the size of memory may differ by 3 %: another kernel
// leaves another part of the memory free, and no two servers have the same to the KiB. Sizes of GPUs differ a little
// from driver to driver. All else must be equal.
bool same_fact(const std::string& name, const std::string& a, const std::string& b);

// True if `b` is as good as `a`: the same, or for limits more.
bool good_fact(const std::string& name, const std::string& a, const std::string& b);

struct Difference {
  std::string kind;  // machine, version, setting or fact
  std::string name;
  std::string a, b;  // "" where it is absent
};

// One metric and band of A (the baseline) against B.
struct Comparison {
  std::string metric;
  double band_bytes = -1;
  std::string unit, better, node;
  std::vector<double> a, b;              // of A one a session, or of a single session one a launch; of B one a launch
  std::vector<double> again_a, again_b;  // of fresh launches, measured in turn because it was suspect
  double limit = 0;                      // how far from A's median B's may be: log(1.03) is 3 %
  // same, worse, better (unexplained gain), flaky (suspect, then not), "no evidence", suspect (not measured again)
  std::string verdict;
  double visible = 0;   // a smaller loss may not be found, as a logarithm
  std::string check{};  // that measured it; not in results.jsonl, nor is other work while A and B were measured
  double other_a = -1, other_b = -1;
};

// With what, where and how.
struct Head {
  std::string suite;  // smoke, gate, deep; or "compare"
  std::string command;
  std::string started;             // ISO 8601, UTC
  std::string launcher;            // with its options
  std::vector<std::string> nodes;  // hosts
  int processes_per_node = 0;
  std::map<std::string, std::string> machine;   // hardware: what makes two results comparable
  std::map<std::string, std::string> versions;  // of software
  std::map<std::string, std::string> settings;  // variables and files that steer MPI, NCCL, UCX ...
};

struct Summary {
  int passed = 0, failed = 0, flaky = 0, skipped = 0, not_run = 0;
  double seconds = 0;
  int exit_status = 0;  // 0 right, 1 something failed, 3 could not test
  std::string cause{};  // one thing that is wrong with the first node, and explains failures; "": none is known
};

void count(Summary& summary, Status status);
void conclude(Summary& summary);  // sets the exit status

struct Results {
  Head head;
  std::vector<CheckResult> checks;
  std::vector<Sample> samples;
  std::vector<Fact> facts;
  std::vector<Difference> differences;
  std::vector<Comparison> comparisons;
  Summary summary;
  bool complete = false;                          // a summary was read: the run came to its end
  std::shared_ptr<multinode::Descriptor> lock{};  // of the folder, until the reports are written
};

// What differs in machine, versions and settings, in this order; each by name.
std::vector<Difference> differences(const Head& a, const Head& b);

// junit.xml, report.html and metrics.prom, before a run looks at anything: they would pass for its own if it is killed.
void remove_reports(const std::filesystem::path& folder);

// Writes each line at once, whole. The folder is locked as long: two runs in one would mix what they write. Throws
// multinode::UsageError for a file that cannot be made, std::runtime_error for a line that cannot be written.
class ResultsWriter {
 public:
  explicit ResultsWriter(const std::filesystem::path& folder);
  void write(const std::variant<Head, CheckResult, Sample, Fact, Difference, Comparison, Summary>& line);
  std::shared_ptr<multinode::Descriptor> lock() const { return folder_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<multinode::Descriptor> folder_;  // its lock
  multinode::Descriptor file_;
};

// Reads FOLDER/results.jsonl. A last line that is cut off is no error: the run was killed. Throws
// multinode::UsageError, naming file and line, for anything else that is no results: another schema, an unknown status,
// a value that is not a number, a summary that does not count the checks.
Results read_results(const std::filesystem::path& folder);

// FOLDER, if it has results; else its folders that have, in the order of their names. Throws multinode::UsageError.
std::vector<std::filesystem::path> sessions_in(const std::filesystem::path& folder);

// multinode::write_whole(), that throws multinode::UsageError.
void write_whole(const std::filesystem::path& path, const std::string& text);

// "8 B", "4 KiB", "1 MiB"
std::string band_name(double bytes);

}  // namespace image_check
