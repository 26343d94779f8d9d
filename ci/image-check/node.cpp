#include "node.hpp"

#include "process.hpp"
#include "prometheus.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <sstream>

namespace image_check {
namespace {

// The variables of this process that node_check needs; none of a job's, by which it would look for other ranks.
Command alone(const Command& program) {
  Command command{"env", "-i"};
  for (const char* name :
       {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR", "HOME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"})
    if (const char* value = std::getenv(name)) command.push_back(std::string(name) + "=" + value);
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  return last;
}

void drain(const std::string& reason, std::chrono::milliseconds time) {
  const char* const given = std::getenv("SLURMD_NODENAME");
  const std::string host = multinode::host_name();
  const std::string node = given ? given : host.substr(0, host.find('.'));
  const MemoryFile log;
  Processes scontrol({{"scontrol", "update", "NodeName=" + node, "State=DRAIN", "Reason=" + reason}}, {}, log.path(),
                     time, {time / 4, time / 4});
  if (const int status = scontrol.end().exit_status; status != 0)
    throw std::runtime_error("cannot drain " + node + ": scontrol ended with status " + std::to_string(status) + ": " +
                             last_line(log.text()));
}

// The seconds in "10", "10s" or "1.5s".
double parse_seconds(const std::string& text) {
  const auto number = text.substr(0, text.size() - (!text.empty() && text.back() == 's'));
  const auto seconds = multinode::number_of<double>(number);
  if (!seconds || !(*seconds >= 1 && *seconds <= 3600))
    throw multinode::UsageError("--budget: '" + text + "' is not a number of seconds from 1 to 3600, such as 10s");
  return *seconds;
}

}  // namespace

boost::program_options::options_description NodeOptions::description() {
  namespace po = boost::program_options;
  po::options_description known("node: is this node fit for a job? One line and an exit status");
  known.add_options()  //
      ("budget", po::value(&budget)->value_name("SECONDS")->default_value(budget),
       "a node that has not answered by then is bad")  //
      ("measure", po::bool_switch(&measure),
       "also measure memory, matrix products and GPU memory: only on an idle node")  //
      ("state", po::value(&state)->value_name("DIR"),
       "folder for error counters: those that grew since the last look are a failure")  //
      ("prometheus", po::value(&prometheus)->value_name("FILE"),
       "file for node_exporter's textfile collector")                                                    //
      ("json", po::value(&json)->value_name("FILE"), "file for all findings, one JSON object per line")  //
      ("drain", po::bool_switch(&drain), "drain a node that fails, with the reason (scontrol; needs root)");
  return known;
}

int check_node(const NodeOptions& options, std::ostream& out) {
  using std::chrono::milliseconds;
  const double budget = parse_seconds(options.budget);
  const auto share = [budget](double part) { return milliseconds(std::lround(1000 * budget * part)); };
  const MemoryFile log, json;
  const std::string own = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "node_check";
  Command program{own, "--json", json.path(), "--timeout", std::to_string(std::lround(std::ceil(budget)))};
  for (const char* name : {"limits", "devices", "health"}) program.insert(program.end(), {"--only", name});
  if (options.measure) {
    for (const char* name : {"memory_bandwidth", "matrix_rate", "shared_memory", "gpu"})
      program.insert(program.end(), {"--only", name});
    program.insert(program.end(), {"--seconds", fmt::format("{:.2f}", budget / 50)});
  }
  if (!options.state.empty()) program.insert(program.end(), {"--state", options.state});

  // 60 % of the budget to answer, 20 % to end what does not, the rest to drain the node.
  Processes processes({alone(program)}, {}, log.path(), share(0.6), {share(0.05), share(0.05)});
  const Outcome outcome = processes.end();

  Results results;
  std::vector<std::string> wrong;
  std::istringstream lines(json.text());
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("what")) continue;
    CheckResult finding;
    finding.check = object.at("what");
    finding.status = object.at("ok").is_null() ? Status::skip : object.at("ok") == true ? Status::pass : Status::fail;
    if (finding.status == Status::fail) wrong.push_back(finding.check + ": " + object.at("why").get<std::string>());
    results.checks.push_back(finding);
    if (object.at("value").is_number() && object.at("better") != "equal")
      results.samples.push_back(
          {.metric = finding.check, .unit = object.at("unit"), .value = object.at("value"), .node = object.at("host")});
  }

  const std::string host = multinode::host_name();
  std::string said;
  int status = multinode::exit_wrong;
  if (outcome.timed_out) {
    said = fmt::format(
        "FAIL: the node did not answer within {:.3g} s{}", budget,
        outcome.stuck > 0 ? ": a process waits in the kernel (look at dmesg and network file systems)" : "");
  } else if (!wrong.empty()) {
    said = "FAIL: " + multinode::join(wrong, "; ");
  } else if (outcome.exit_status == multinode::exit_right && !results.checks.empty()) {
    status = multinode::exit_right;
    said =
        fmt::format("ok: {} findings, none of them wrong, in {:.1f} s", results.checks.size(), outcome.seconds.count());
  } else {
    status = multinode::exit_untestable;
    said =
        fmt::format("could not test: node_check ended with status {}: {}", outcome.exit_status, last_line(log.text()));
  }
  out << "image-check: " << host << ": " << said << std::endl;
  results.summary.exit_status = status;
  if (!options.prometheus.empty()) write_whole(options.prometheus, prometheus_text(results));
  if (!options.json.empty()) write_whole(options.json, json.text());
  if (status == multinode::exit_wrong && options.drain) drain("image-check: " + said.substr(6), share(0.1));
  return status;
}

}  // namespace image_check
