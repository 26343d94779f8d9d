#include "commands.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/host_list.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/chrono.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <span>
#include <sstream>
#include <system_error>

namespace image_check {
namespace po = boost::program_options;
namespace {

using Clock = std::chrono::steady_clock;

using multinode::UsageError;

constexpr double grace = 6;  // seconds to end what does not end, and to write reports

std::string file_name(std::string name, int launch, int attempt) {
  std::erase(name, ',');
  std::ranges::replace_if(
      name, [](char c) { return c == ' ' || c == '/'; }, '-');
  return name + "-" + std::to_string(launch) + (attempt ? "-again" : "");
}

std::vector<const Check*> select(const RunOptions& options, const std::vector<Check>& checks) {
  const auto known = [&checks](const std::string& option, const std::vector<std::string>& names) {
    for (const auto& name : names) {
      if (option == "require" && name == "all") continue;
      if (std::ranges::none_of(checks, [&](const auto& check) { return check.name == name; }))
        throw UsageError("--" + option + ": no check '" + name + "'; 'image-check list' shows them");
    }
  };
  known("only", options.only);
  known("require", options.required);
  std::vector<const Check*> chosen;
  for (const auto& check : checks) {
    const bool named = std::ranges::find(options.only, check.name) != options.only.end();
    if (named ||
        (options.only.empty() && check.from <= options.suite && (options.launches == 1 || !check.measures.is_null())))
      chosen.push_back(&check);
  }
  return chosen;
}

class Run {
 public:
  Run(const RunOptions& options, std::ostream& out)
      : options_(options),
        out_(out),
        site_(read_site(options.site)),
        cluster_(find_cluster(options.cluster, site_.launcher)),
        checks_(select(options, site_.checks)),
        folder_(std::filesystem::absolute(options.folder)),
        writer_(folder_) {
    for (const auto& node : cluster_.nodes) inventory_of(site_, node);  // it says something of every node
    for (const char* part : {"logs", "files"}) {
      std::filesystem::remove_all(folder_ / part);
      if (::mkdir((folder_ / part).c_str(), multinode::folder_mode) != 0)
        throw UsageError("-o: " + (folder_ / part).string() + " appears while it is made: name a folder of your own");
    }
    budget_ = options.budget > 0 ? options.budget : budget_seconds(options.suite) * options.launches;
    if (options.budget == 0)
      for (const Check* check : checks_) budget_ += (seconds_on(*check, cluster_) - check->seconds) * options.launches;
  }

  Results all() {
    plan();
    compare_environments();
    for (int launch = 0; launch < options_.launches; ++launch)
      for (const Check* check : checks_) one(*check, launch);
    auto& summary = results_.summary;
    summary.seconds = elapsed();
    conclude(summary);
    if (options_.retry && summary.failed > 0) summary.cause = common_cause(cluster_);
    if (!summary.cause.empty()) out_ << "likely cause: " << summary.cause << "\n";
    if (options_.launches == 1 && summary.passed > 0)
      out_ << "note: a run alone finds only what is far too slow; to find smaller losses, compare it with a baseline\n";
    writer_.write(summary);
    results_.complete = true;
    results_.lock = writer_.lock();
    return std::move(results_);
  }

 private:
  double needed(std::span<const Check* const> checks) const {  // seconds, without those that are left out
    double seconds = 0;
    for (const Check* check : checks)
      if (!left_out_.contains(check)) seconds += seconds_on(*check, cluster_) * options_.launches;
    return seconds;
  }

  bool interrupted() { return interrupted_ = interrupted_ || signals_.next(); }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  void plan() {
    auto& head = results_.head;
    head.suite = options_.only.empty() ? name_of(options_.suite) : "only";
    head.command = options_.command;
    head.started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
    head.launcher = cluster_.launcher_command();
    head.nodes = cluster_.nodes;
    head.processes_per_node = cluster_.processes_per_node;
    describe_machine(head, cluster_);
    writer_.write(head);

    std::ranges::copy_if(checks_, std::back_inserter(can_), [&](auto check) { return !cannot_run(*check, cluster_); });
    const double alone = needed(can_);
    cluster_.busy = measure_busy(cluster_.processes_per_node);
    // A baseline and what somebody named must be measured, however long it takes.
    choose_ = options_.only.empty() && options_.launches == 1 && alone <= budget_;
    if (choose_) {
      auto by_cost = can_;
      std::ranges::sort(by_cost, {}, [](auto check) {  // the longest of those that suffer most, then of the others
        return std::pair(check->most_busy, -check->seconds);
      });
      for (const Check* check : by_cost)
        if (cluster_.busy > check->most_busy || needed(can_) > budget_ - grace) left_out_.insert(check);
    }
    out_ << fmt::format("image-check: suite {}, {} of {} checks can run here{}, {}, {} node{} x {} processes\n",
                        head.suite, can_.size(), checks_.size(),
                        options_.launches > 1 ? fmt::format(", {} launches of each", options_.launches) : "",
                        head.launcher, head.nodes.size(), head.nodes.size() == 1 ? "" : "s", head.processes_per_node)
         << fmt::format("budget {:g} s, about {:.0f} s needed\n", budget_, needed(can_));
    if (!left_out_.empty())
      out_ << fmt::format("note: others' work makes this node {:.0f} times slower: {} checks are left out\n",
                          cluster_.busy, left_out_.size());
    if (const auto all = sysconf(_SC_NPROCESSORS_ONLN), own = std::ssize(multinode::allowed_cpus()); own < all)
      out_ << "note: image-check may use " << own << " of " << all << " CPUs (taskset or a cpuset)\n";
    if (alone > budget_)
      throw UsageError(fmt::format(
          "the checks need about {:.0f} s, more than the budget: take a larger --budget, or fewer checks", alone));
  }

  void compare_environments() {
    CheckResult result{.check = "environment", .title = "all nodes have the same variables"};
    result.status = Status::fail, result.action = Action::investigate;
    for (const auto& text : environment_differences(cluster_, std::chrono::seconds(std::lround(budget_ / 3))))
      result.findings.push_back({"environment", text, ""});
    alike_ = result.findings.empty();
    if (!alike_) finish(result);
  }

  Command words(const Check& check, const std::filesystem::path& json, double limit) const {
    const auto timeout = std::to_string(std::max(std::lround(limit / deadlines), 2L));
    const auto text = [](const Command& words) { return shell_words({}, words); };
    const nlohmann::json places{{"json", text({json})},
                                {"common", text({"--timeout", timeout, "--json", json})},
                                {"nodes", multinode::join(cluster_.nodes, ",")},
                                {"launcher", text({cluster_.launcher_command()})},
                                {"launch", text(cluster_.launch(cluster_.nodes, cluster_.processes_per_node, {}, {}))},
                                {"processes", cluster_.processes_per_node},
                                {"examples", text({cluster_.examples})}};
    Command command = options_.wrapper, arguments{"-c", filled(check.command, places)};
    command.push_back(cluster_.path_of(check.program));
    if (check.command.empty()) arguments = po::split_unix(filled(check.arguments, places));
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), options_.words.begin(), options_.words.end());
    return command;
  }

  struct Attempt {
    Judged judged{};
    CheckResult result;
    bool cut_off = false;  // by the budget
  };
  // `asked` is how long it might take, `limit` what is left for it.
  Attempt attempt(const Check& check, int launch, int number, double asked, double left) {
    const double limit = std::min(asked, left);
    const auto name = file_name(check.name, launch, number);
    const auto log = folder_ / "logs" / (name + ".log"), json = folder_ / "files" / (name + ".jsonl");
    Variables variables = check.where == Where::one_each ? whole_node() : small_machine();
    for (const auto& [key, value] : check.variables) variables[key] = value;
    for (const auto& [key, value] : options_.variables) variables[key] = value;
    const auto program = words(check, json, limit);
    const Command command =
        check.where == Where::first_process
            ? program
            : cluster_.launch(cluster_.nodes, check.where == Where::one_each ? 1 : cluster_.processes_per_node, program,
                              variables);

    Attempt attempt{
        .result = {.check = check.name,
                   .title = check.title,
                   .launch = launch,
                   .nodes = check.where == Where::first_process ? std::vector{cluster_.nodes.front()} : cluster_.nodes,
                   .command = shell_words(variables, command),
                   .log = std::filesystem::path("logs") / (name + ".log")}};
    auto& result = attempt.result;

    Processes processes(command, variables, log, std::chrono::milliseconds(std::lround(1000 * limit)));
    std::optional<Outcome> outcome;
    bool stopped = false;
    while (!(outcome = processes.wait(std::chrono::milliseconds(50))))
      if (!stopped && interrupted()) processes.stop(), stopped = true;
    result.seconds = outcome->seconds.count();
    if (stopped) {
      result.reason = "interrupted";
      return attempt;
    }
    if (outcome->timed_out && limit < asked) {
      result.reason = "the budget of " + std::to_string(std::lround(budget_)) + " s was used up before its end";
      attempt.cut_off = true;
      return attempt;
    }
    if (std::filesystem::space(folder_).available < 0x2000)  // what a program says of that is no fault of the node
      throw std::system_error(ENOSPC, std::generic_category(), "cannot write to " + folder_.string());
    if (!options_.retry) outcome->other_work = -1;  // what a self-test plants is not excused
    attempt.judged = judge(check, cluster_, *outcome, log, json);
    result.other_work = attempt.judged.other_work;
    const bool beside_others = attempt.judged.late && result.other_work > 0.5;
    if (beside_others && !attempt.judged.findings.empty())
      attempt.judged.findings.front().text +=
          fmt::format("; other work took {:.0f} % of the CPU time", 100 * result.other_work);
    auto& hosts = attempt.judged.hosts;
    if (check.where != Where::first_process && !hosts.empty()) {
      if (hosts_.empty()) hosts_ = hosts;
      if (hosts != hosts_)
        attempt.judged.findings.push_back({"who took part",
                                           "the nodes call themselves " + multinode::join(hosts, ", ") + ", and were " +
                                               multinode::join(hosts_, ", ") +
                                               " before: a name changed, or the launcher took others",
                                           ""});
    }
    for (auto& finding : attempt.judged.findings)
      if (!alike_) finding.node.clear(), finding.text += " (the environments differ: see above)";
    result.findings = attempt.judged.findings;
    if (attempt.judged.absent || attempt.judged.busy) {
      result.status = attempt.judged.absent ? Status::skip : Status::not_run;
      result.reason = attempt.judged.reason;
    } else if (result.findings.empty()) {
      result.status = Status::pass;
    } else {
      result.status = outcome->timed_out ? Status::timeout : Status::fail;
      // A hang is of a program, a library or a network, unless something names a node; so is a difference between two
      // nodes. The programs' watchdog names the rank that waits, also where all of them do.
      bool may_be_of_no_node = outcome->timed_out;
      for (auto& finding : result.findings) {
        const bool all_wait = finding.text.find("every rank has entered it") != std::string::npos;
        if (all_wait) finding.node.clear();
        may_be_of_no_node |= all_wait || (finding.detector == "devices" && finding.node.empty());
      }
      const bool names_a_node =
          std::ranges::any_of(result.findings, [](const Finding& finding) { return !finding.node.empty(); });
      result.action = attempt.judged.started && alike_ && !beside_others && (names_a_node || !may_be_of_no_node)
                          ? check.action
                          : Action::investigate;
    }
    return attempt;
  }

  void one(const Check& check, int launch) {
    CheckResult result{.check = check.name, .title = check.title, .launch = launch};
    const double left = budget_ - elapsed(), limit = options_.limit > 0 ? options_.limit : limit_on(check, cluster_),
                 needed = seconds_on(check, cluster_);
    const auto too_busy = [&] { return choose_ && suffers(check) && measure_busy(cluster_.processes_per_node) >= 2; };
    if (const auto why = cannot_run(check, cluster_); why || left_out_.contains(&check)) {
      result.status = Status::skip;
      result.reason = why.value_or(left_out_busy);
    } else if (interrupted()) {
      result.reason = "interrupted";
    } else if (left < needed + grace) {
      result.reason = "the budget of " + std::to_string(std::lround(budget_)) + " s is used up";
      if (too_busy()) result.status = Status::skip, result.reason = left_out_busy;
    } else {
      // What suffers from others' work leaves the checks after it their time.
      const auto later = std::ranges::next(std::ranges::find(can_, &check), 1, can_.end());
      const double reserved = choose_ && suffers(check) ? this->needed({later, can_.end()}) : 0;
      auto tried = attempt(check, launch, 0, limit, std::max(left - grace - reserved, needed));
      // On a busy node, a program that must fail at its own deadline ends late or prints less.
      const bool late = check.exit_status != 0 && suffers(check) && tried.result.status == Status::fail &&
                        std::ranges::all_of(tried.result.findings,
                                            [](const Finding& finding) { return finding.detector == "output"; });
      if ((tried.cut_off || late) && too_busy()) {
        tried.result.status = Status::skip;
        tried.result.reason = left_out_busy;
        tried.result.findings.clear();
      }
      const double then = budget_ - elapsed();
      const bool busy = tried.judged.busy;
      if (options_.retry && (busy || tried.result.status == Status::fail) && then > needed + grace) {
        auto again = attempt(check, launch, 1, limit, then - grace);
        if (busy)
          tried = std::move(again);
        else if (again.result.status == Status::pass)
          tried.result.status = Status::flaky;
      }
      result = tried.result;
      for (const auto& fact : tried.judged.facts) {
        writer_.write(fact);
        results_.facts.push_back(fact);
      }
      if (result.status != Status::skip && result.status != Status::not_run)
        for (auto& sample : tried.judged.samples) {
          sample.launch = launch;
          writer_.write(sample);
          results_.samples.push_back(sample);
        }
    }
    const bool required =
        std::ranges::any_of(options_.required, [&](const auto& name) { return name == "all" || name == check.name; });
    if (result.status == Status::skip && required) {
      result.status = Status::not_run;
      result.reason = "is required, and could not run: " + result.reason;
    }
    finish(result);
  }

  void finish(const CheckResult& result) {
    tell(result);
    writer_.write(result);
    count(results_.summary, result.status);
    results_.checks.push_back(result);
  }

  void tell(const CheckResult& result) {
    out_ << fmt::format("{:<8}{:<34}{:6.1f} s{}\n", name_of(result.status), result.check, result.seconds,
                        result.reason.empty() ? "" : "  " + result.reason);
    for (const auto& finding : result.findings) {
      std::istringstream text(finding.text);
      out_ << "         " << image_check::words(result.action)
           << (finding.node.empty() ? "" : " (" + finding.node + ")") << ": ";
      for (std::string line, before; std::getline(text, line); before = "           ") out_ << before << line << "\n";
    }
    if (!result.findings.empty() && !result.command.empty())
      out_ << "         reproduce with: " << result.command << "\n";
    out_ << std::flush;
  }

  const RunOptions& options_;
  std::ostream& out_;
  Site site_;
  Cluster cluster_;
  std::vector<const Check*> checks_;
  std::filesystem::path folder_;
  ResultsWriter writer_;
  double budget_ = 0;
  Clock::time_point started_ = Clock::now();
  std::set<std::string> hosts_;  // that took part in the first check
  Results results_;
  multinode::Signals signals_{SIGINT, SIGTERM, SIGHUP};
  bool interrupted_ = false;
  bool choose_ = false;              // among the checks, what the node has time for
  std::vector<const Check*> can_;    // what can run here, of checks_
  std::set<const Check*> left_out_;  // because the node is busy
  bool alike_ = true;                // the nodes' environments
};

}  // namespace

po::options_description ClusterOptions::description() {
  po::options_description known("Where");
  known.add_options()  //
      ("hosts", po::value<std::string>()->value_name("A,B,...")->notifier([this](const std::string& text) {
        hosts = multinode::expand_host_list(text);
      }),
       "the nodes, this one first, such as node[0-3]; default: those of the Slurm or PBS job, or this machine")  //
      ("launcher", po::value(&launcher)->default_value(launcher),
       "mpirun, mpiexec or srun (or a path, or mpirun.mpich), mnrun or auto; its options may follow: "
       "'srun --container-image=IMAGE'")  //
      ("processes-per-node", po::value(&processes_per_node)->value_name("N")->notifier([](int given) {
        multinode::require_range("processes-per-node", given, 0, 1024);
      }),
       "default: a GPU each, or a core each, 2 to 4")  //
      ("examples", po::value(&examples)->value_name("DIR"),
       "build folder of the examples; default: around this program");
  return known;
}

po::options_description RunOptions::description() {
  po::options_description known("What, and for how long");
  known.add_options()  //
      ("suite", po::value<std::string>()->default_value("smoke")->notifier([this](const std::string& text) {
        suite = parse_suite(text);
      }),
       "smoke (a minute), gate (5 minutes) or deep (30 minutes)")                          //
      ("only", po::value(&only)->value_name("CHECK"), "only this check; may be repeated")  //
      ("require", po::value(&required)->value_name("CHECK"),
       "this check must run: if it is skipped, the exit status is 3; may be repeated; all: every check")  //
      ("site", po::value(&site)->value_name("FILE"), "checks, thresholds and launcher of the site")       //
      ("budget", po::value(&budget)->value_name("SECONDS")->notifier([](double given) {
        multinode::require_range("budget", given, 0.0, 1e6);
      }),
       "in place of the suite's")  //
      ("output,o", po::value(&folder)->value_name("DIR")->default_value(folder),
       "folder for the reports, made if it is not there");
  known.add(cluster.description());
  return known;
}

Results run_checks(const RunOptions& options, std::ostream& out) {
  remove_reports(options.folder);
  return Run(options, out).all();
}

}  // namespace image_check
