#include "commands.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>
#include <boost/program_options.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

namespace image_check {
namespace {

using multinode::UsageError;

// The last value of each, by node and name. A null is not a fact: the cores may have been too busy to measure on them.
using Facts = std::map<std::pair<std::string, std::string>, std::string>;
Facts facts_of(const Results& results) {
  Facts facts;
  for (const auto& fact : results.facts)
    if (fact.value != "null") facts[{fact.node, fact.name}] = fact.value;
  return facts;
}

// Runs `command`, which is image-check run in A or B, again for these checks, into that folder. The results of A and B
// are data, and name nothing that is executed. Returns false if it did not come to its end. Throws
// multinode::UsageError if it could not even start.
bool run_again(const std::string& command, double timeout, int processes_per_node, const std::set<std::string>& checks,
               const std::filesystem::path& folder) {
  Command words{"-o", folder, "--suite=deep", "--processes-per-node=" + std::to_string(processes_per_node),
                fmt::format("--budget={}", timeout)};
  for (const auto& check : checks) words.push_back("--only=" + check);
  multinode::make_folders(folder);
  const auto log = folder.string() + ".log";
  Processes process({"sh", "-c", "exec " + command + " " + shell_words({}, words)}, {}, log,
                    std::chrono::milliseconds(std::lround(1000 * timeout)));
  const int status = process.end().exit_status;
  if (status == multinode::exit_usage || (status >= 125 && status <= 127))
    throw UsageError("cannot measure again: '" + command + "' ended with status " + std::to_string(status) + "; see " +
                     log);
  return status <= multinode::exit_wrong;
}

// Results with the names of `nodes`, node by node: a container has another name in each run, a job other nodes.
Results renamed(Results results, const std::vector<std::string>& nodes) {
  const auto own = results.head.nodes;
  if (own.size() != nodes.size() || std::is_permutation(own.begin(), own.end(), nodes.begin())) return results;
  const auto name = [&](const std::string& node) {
    const auto at = std::ranges::find(own, node);
    return at == own.end() ? node : nodes[static_cast<std::size_t>(at - own.begin())];
  };
  const std::string between = " - ";
  for (auto& sample : results.samples) {
    const auto pair = sample.node.find(between);
    sample.node = pair == std::string::npos
                      ? name(sample.node)
                      : name(sample.node.substr(0, pair)) + between + name(sample.node.substr(pair + between.size()));
  }
  for (auto& fact : results.facts) fact.node = name(fact.node);
  return results;
}

constexpr const char* smaller_suite = "B was not asked: its suite is smaller";

// Values of launches that failed are for people who look for the reason.
void drop_what_failed(Results& results) {
  std::set<std::pair<std::string, int>> failed;
  for (const auto& check : results.checks)
    if (check.status != Status::pass) failed.emplace(check.check, check.launch);
  std::erase_if(results.samples, [&](const auto& sample) { return failed.contains({sample.check, sample.launch}); });
}

// Why a check of B is no evidence of B, such as others' work; "": it is.
std::string why_it_tells_nothing(const CheckResult& of_b) {
  if (of_b.status == Status::flaky)
    return "failed, and passed when it ran again, which tells nothing about B: run B again, on a quiet node";
  return of_b.status == Status::not_run || (of_b.status == Status::skip && of_b.reason == left_out_busy) ? of_b.reason
                                                                                                         : "";
}

// What fresh launches measured, each a folder. `not_run`: the checks that tell nothing in one of them.
std::map<MetricKey, Measured> fresh_values(const std::vector<std::filesystem::path>& folders, const Head& head,
                                           std::set<std::string>& not_run) {
  std::vector<Sample> samples;
  for (int launch = 0; const auto& folder : folders) {
    std::error_code ignored;
    const auto bytes = std::filesystem::file_size(folder / "results.jsonl", ignored);
    if (ignored || bytes == 0) continue;  // it failed before it measured
    auto fresh = renamed(read_results(folder), head.nodes);
    for (const auto& result : fresh.checks)
      if (!why_it_tells_nothing(result).empty()) not_run.insert(result.check);
    drop_what_failed(fresh);
    if (fresh.head.launcher != head.launcher)
      throw UsageError("fresh launches used " + fresh.head.launcher + ", and B " + head.launcher +
                       ": give --again-b the options that B was run with");
    for (auto sample : fresh.samples) {
      sample.launch = launch;
      samples.push_back(sample);
    }
    ++launch;
  }
  return metrics_of(samples);
}

Results read_complete(const std::filesystem::path& folder) {
  auto results = read_results(folder);
  if (!results.complete) throw UsageError(folder.string() + " is of a run that did not come to its end");
  drop_what_failed(results);
  return results;
}

// Those of A, which must be of one image and kind of machine.
std::vector<Results> read_sessions(const std::filesystem::path& folder) {
  std::vector<Results> sessions;
  for (const auto& session : sessions_in(folder)) {
    sessions.push_back(read_complete(session));
    for (const auto& difference : differences(sessions.front().head, sessions.back().head))
      if (difference.kind != "setting" && !difference.name.starts_with("package "))  // of these, some matter to nothing
        throw UsageError("the sessions of A differ (" + difference.name + ": '" + difference.a + "', and '" +
                         difference.b + "' in " + session.string() + "): make them again in one image");
  }
  return sessions;
}

// One comparison, from the results of A and B to the reports. Each step writes what it finds to the results.
class Comparing {
 public:
  Comparing(const CompareOptions& options, std::ostream& out)
      : options_(options),
        out_(out),
        b_(read_complete(options.b)),
        folder_(std::filesystem::absolute(options.folder)),
        sessions_(read_sessions(options.a)),
        writer_(folder_) {
    results_.head = b_.head;
    results_.head.suite = "compare";
    results_.head.command = options.command;
    writer_.write(results_.head);
  }

  void compare_heads() {
    const auto or_absent = [](const std::string& value) { return value.empty() ? "absent" : value; };
    results_.differences = differences(a().head, b_.head);
    for (const auto& difference : results_.differences) {
      writer_.write(difference);
      say(difference.kind + " " + difference.name + ": " + or_absent(difference.a) + " -> " + or_absent(difference.b));
      if (difference.kind == "machine")
        throw UsageError("the machines differ (" + difference.name + ": '" + difference.a + "', '" + difference.b +
                         "'): speeds are not comparable");
    }
  }

  // Two nodes of one kind differ by some percent. Sessions of a single node do not show by how much.
  void compare_nodes() {
    const auto sorted = [](auto nodes) { return std::set<std::string>(nodes.begin(), nodes.end()); };
    const auto of_b = sorted(b_.head.nodes);
    std::set<std::string> of_a;
    other_nodes_ = !in_turn();
    for (const auto& session : sessions_) {
      const auto nodes = sorted(session.head.nodes);
      of_a.insert(nodes.begin(), nodes.end());
      other_nodes_ = other_nodes_ && nodes != of_b;
    }
    if (a().head.nodes != b_.head.nodes)
      say("other nodes: A has " + multinode::join(of_a) + ", B has " + multinode::join(b_.head.nodes) +
          "; they are compared in this order");
    if (other_nodes_ && of_a.size() == 1)
      throw UsageError("A was measured on " + *of_a.begin() + " alone, and B on " +
                       multinode::join(b_.head.nodes, ", ") +
                       ": how much nodes differ is not known. Measure A on several nodes, or measure A and B in turn "
                       "(--again-a); give containers of one machine one name (--hostname)");
    for (auto& session : sessions_) session = renamed(std::move(session), b_.head.nodes);
  }

  // What failed there, and what ran in A and not in B.
  void take_over_failures_of_b() {
    for (auto result : b_.checks) {
      const bool ran_in_a = std::ranges::any_of(
          a().checks, [&](const auto& other) { return other.check == result.check && other.status == Status::pass; });
      const auto why = why_it_tells_nothing(result);
      if (!why.empty() && (ran_in_a || result.status == Status::flaky)) {
        result.status = Status::not_run;
        result.reason = why;
      } else if (result.status == Status::skip && ran_in_a) {
        result.status = Status::fail;
        result.action = Action::investigate;
        result.findings = {{"skipped", "could run in A, and not in B: " + result.reason, ""}};
      }
      if (result.status != Status::pass && result.status != Status::skip) record(result);
    }
  }

  void compare_facts() {
    const auto in_a = facts_of(a()), in_b = facts_of(b_);
    auto all = in_a;
    all.insert(in_b.begin(), in_b.end());
    std::set<std::string> asked, not_asked;
    for (const auto& result : b_.checks) asked.insert(result.check);
    for (const auto& fact : b_.facts) asked.insert(fact.check);
    for (const auto& fact : a().facts)
      if (!asked.contains(fact.check)) not_asked.insert(fact.check), all.erase({fact.node, fact.name});
    for (const auto& check : not_asked)
      record({.check = check + ": facts", .title = "are what they were", .reason = smaller_suite});
    for (const auto& [key, ignored] : all) {
      const auto& [node, name] = key;
      const auto value_in = [&key = key, &name = name](const Facts& facts) -> std::string {
        if (const auto at = facts.find(key); at != facts.end()) return at->second;
        return name.starts_with("cgroup_") ? "unlimited" : "";  // a limit that is absent
      };
      const Difference difference{"fact", node + ": " + name, value_in(in_a), value_in(in_b)};
      if (difference.a.empty() || good_fact(name, difference.a, difference.b)) continue;
      writer_.write(difference);
      results_.differences.push_back(difference);
      record({.check = name + ", " + node,
              .title = "is what it was",
              .status = Status::fail,
              .action = Action::investigate,
              .nodes = {node},
              .findings = {
                  {"devices", difference.name + " is '" + difference.b + "', and was '" + difference.a + "'", node}}});
    }
  }

  void compare_metrics() {
    const auto in_b = metrics_of(b_.samples);
    std::map<MetricKey, Measured> last_of_a;
    std::map<MetricKey, std::vector<double>> other_work;
    for (const auto& session : sessions_)
      for (const auto& [key, measured] : metrics_of(session.samples)) {
        in_a_[key].push_back(measured.values);
        other_work[key].push_back(measured.other_work);
        last_of_a[key] = measured;
      }
    for (const auto& [key, of_a] : last_of_a) {
      const auto& check = of_a.check;
      const auto of_b = in_b.find(key);
      if (of_b == in_b.end()) {
        record_missing(key, check);
        continue;
      }
      const auto unit = [](const Measured& of) { return "'" + of.unit + ", " + of.better + "'"; };
      if (unit(of_a) != unit(of_b->second))
        throw UsageError(name_of(key) + " has the unit and direction " + unit(of_a) + " in A, and " +
                         unit(of_b->second) + " in B: they cannot be compared");
      compared_.push_back(compare_metric(key, of_b->second, baseline_of(key), in_a_.size(), in_turn(), required()));
      compared_.back().other_a = median(other_work.at(key));
      compared_.back().other_b = of_b->second.other_work;
    }
  }

  void measure_suspects_again() {
    std::set<std::string> suspects;
    for (const auto& one : compared_)
      if (one.verdict == "worse") suspects.insert(one.check);
    if (suspects.empty()) return;
    if (options_.again_b.empty()) {
      for (auto& one : compared_)
        if (one.verdict == "worse") one.verdict = "suspect";
      return;
    }
    say(std::string("measuring again, in fresh launches") + (options_.again_a.empty() ? "" : " of A and B in turn") +
        ": " + multinode::join(suspects, "; "));
    out_ << std::flush;
    std::vector<std::filesystem::path> of_a, of_b;
    const auto launch = [&](bool is_a, const std::filesystem::path& where) {
      (is_a ? of_a : of_b).push_back(where);
      const bool ended = run_again(is_a ? options_.again_a : options_.again_b, options_.timeout,
                                   (is_a ? a() : b_).head.processes_per_node, suspects, where);
      if (!ended && is_a)
        throw std::runtime_error("a fresh launch of A did not come to its end, so that B cannot be judged; see " +
                                 where.string() + ".log");
    };
    for (std::size_t number = 0; number < fresh_launches; ++number) {
      if (in_turn()) launch(true, folder_ / ("again-a-" + std::to_string(number)));
      launch(false, folder_ / ("again-b-" + std::to_string(number)));
    }
    std::set<std::string> not_run;
    auto fresh_a = fresh_values(of_a, b_.head, not_run), fresh_b = fresh_values(of_b, b_.head, not_run);
    for (auto& one : compared_) {
      if (one.verdict != "worse") continue;
      const auto &again_a = fresh_a[key_of(one)], &again_b = fresh_b[key_of(one)];
      if (in_turn()) one.other_a = again_a.other_work;
      one.other_b = again_b.other_work;
      if (!not_run.contains(one.check)) confirm(one, again_a.values, again_b.values, required());
      if (not_run.contains(one.check) || (one.verdict == "worse" && explained_by_other_work(one)))
        one.verdict = "suspect";
    }
  }

  void judge_metrics() {
    std::set<std::string> seeing, blind;  // checks that a metric is evidence of, and those without
    std::vector<std::string> table;       // what each metric of those can see
    for (const auto& one : compared_)
      if (is_evidence(one)) seeing.insert(one.check);
    for (const auto& comparison : compared_) {
      const std::string& check = comparison.check;
      writer_.write(comparison);
      results_.comparisons.push_back(comparison);
      CheckResult result{.check = name_of(key_of(comparison)), .title = "is as good as it was"};
      const std::string& found = comparison.verdict;
      result.status = found == "worse"           ? Status::fail
                      : found == "suspect"       ? Status::not_run
                      : !is_evidence(comparison) ? Status::skip
                                                 : Status::pass;
      const auto of_b = std::ranges::find(b_.checks, check, &CheckResult::check);
      if (of_b != b_.checks.end()) result.command = of_b->command;
      if (found == "worse") {
        result.action = Action::investigate;
        result.findings = {{"speed", result.check + ": " + explain(comparison), comparison.node}};
      } else {
        result.reason = found + ": " + explain(comparison);
        const bool much = !is_evidence(comparison) && worse_than_all(comparison) > required();
        if ((found == "suspect" || much) && explained_by_other_work(comparison))
          result.reason += fmt::format(
              "; not judged: B ran beside other work that took {:.0f} % of the CPU time, and A {:.0f} %: run B again "
              "on a quiet node",
              100 * comparison.other_b, 100 * comparison.other_a);
        else if (found == "suspect")
          result.reason += options_.again_b.empty() ? "; say with --again-b how to measure it again in B"
                                                    : "; fresh launches did not run it: compare again on quiet nodes";
        if (!is_evidence(comparison)) {
          const bool nothing_sees = !seeing.contains(check);
          if (much) result.reason += "; worse than all of A by more than the loss that must be found";
          if (nothing_sees)
            result.reason +=
                "; and no metric of '" + check + "' sees a loss of " + fmt::format("{:g} %", options_.loss);
          if (much || nothing_sees) result.status = Status::not_run;
          if (nothing_sees && !much) {
            blind.insert(check);
            table.push_back(
                fmt::format("  {:<50} {}", result.check, words_of_visible(comparison.visible, comparison.better)));
            add(std::move(result));
            continue;
          }
        }
        say(result.check + ": " + result.reason);
      }
      record(result);
    }
    if (blind.empty()) return;
    say("not tested: " + multinode::join(blind, "; "));
    out_ << "    because no metric of these sees a loss of " << fmt::format("{:g} %", options_.loss)
         << " in B: A is too noisy, or has too few sessions. Make more sessions of A on a quiet node\n"
         << "    (image-check baseline, ten times), measure A and B in turn (--again-a), or accept less (--loss)\n"
         << multinode::join(table, "\n", multinode::one_line) << "\n";
  }

  Results conclude() {
    image_check::conclude(results_.summary);
    writer_.write(results_.summary);
    results_.complete = true;
    results_.lock = writer_.lock();
    results_.samples = b_.samples;
    return std::move(results_);
  }

 private:
  const Results& a() const { return sessions_.back(); }
  // Results are other people's text.
  void say(const std::string& text) { out_ << multinode::one_line(text) << "\n"; }
  double required() const { return options_.loss / 100; }
  bool in_turn() const { return !options_.again_a.empty(); }

  void record(CheckResult result) {
    if (result.status != Status::pass && result.status != Status::skip) {
      say(image_check::name_of(result.status) + "  " + result.check);
      for (const auto& finding : result.findings) {
        std::istringstream text(finding.text);
        for (std::string line; std::getline(text, line);) say("    " + line);
      }
    }
    add(std::move(result));
  }

  void add(CheckResult result) {
    count(results_.summary, result.status);
    writer_.write(result);
    results_.checks.push_back(std::move(result));
  }

  void record_missing(const MetricKey& key, const std::string& check) {
    CheckResult missing{.check = name_of(key), .title = "is measured in both"};
    const auto of_b = std::ranges::find(b_.checks, check, &CheckResult::check);
    missing.reason = of_b == b_.checks.end() ? smaller_suite : why_it_tells_nothing(*of_b);
    if (missing.reason.empty()) {
      missing.status = Status::fail;
      missing.action = Action::investigate;
      missing.findings = {{"skipped", "was measured in A, and not in B", key.node}};
    }
    record(missing);
  }

  // A's sessions. With few of them, or where B ran on other nodes, those of A's other nodes say how much nodes and
  // sessions differ.
  Sessions baseline_of(const MetricKey& key) const {
    const bool with_other_nodes = (in_a_.at(key).size() < 3 || other_nodes_) && !in_turn() && !key.node.empty();
    Sessions all;
    for (const auto& [other, of_other] : in_a_)
      if (other == key || (with_other_nodes && other.metric == key.metric && other.band_bytes == key.band_bytes))
        all.insert(all.end(), of_other.begin(), of_other.end());
    return all;
  }

  const CompareOptions& options_;
  std::ostream& out_;
  const Results b_;
  const std::filesystem::path folder_;
  std::vector<Results> sessions_;  // of A; with B's names of nodes after compare_nodes()
  bool other_nodes_ = false;       // B ran on nodes that A did not run on
  std::map<MetricKey, Sessions> in_a_;
  std::vector<Comparison> compared_;
  ResultsWriter writer_;
  Results results_;
};

}  // namespace

boost::program_options::options_description CompareOptions::description() {
  namespace po = boost::program_options;
  po::options_description known("compare A B: folders of image-check baseline, one session or several, and of run");
  known.add_options()  //
      ("again-a", po::value(&again_a)->value_name("COMMAND"),
       "what runs image-check in A, with the options that A had, such as 'podman run --rm -v /results:/results image-a "
       "run --site FILE': measures suspects again")  //
      ("again-b", po::value(&again_b)->value_name("COMMAND"),
       "the same in B, such as 'image-check run' if this machine has B. Without it, suspects are not measured again, "
       "and the exit status is 3")  //
      ("loss", po::value(&loss)->value_name("PERCENT")->default_value(loss),
       "that must be found: a metric that cannot see it is no evidence")  //
      ("timeout", po::value(&timeout)->value_name("SECONDS")->default_value(timeout, "1800"),
       "for each fresh launch; one of B that takes longer is a failure")  //
      ("output,o", po::value(&folder)->value_name("DIR")->default_value(folder), "folder for the reports");
  return known;
}

Results compare(const CompareOptions& options, std::ostream& out) {
  remove_reports(options.folder);
  Comparing comparing(options, out);
  comparing.compare_heads();
  comparing.compare_nodes();
  comparing.take_over_failures_of_b();
  comparing.compare_facts();
  comparing.compare_metrics();
  comparing.measure_suspects_again();
  comparing.judge_metrics();
  return comparing.conclude();
}

}  // namespace image_check
