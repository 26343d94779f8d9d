#include "checks.hpp"

#include "statistics.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <regex>
#include <sstream>

namespace image_check {
namespace {

using nlohmann::json;

// What a JSON line measured; nothing: it is no such line.
std::optional<Sample> sample_of(const json& measures, const json& line) {
  const auto number_at = [&](const char* member) {
    const auto key = line.find(measures.value(member, ""));
    return key != line.end() && key->is_number() ? key->get<double>() : NAN;
  };
  if (measures.contains("if"))
    for (const auto& [key, values] : measures.at("if").items())
      if (!line.contains(key) || std::ranges::find(values, line.at(key)) == values.end()) return std::nullopt;
  if (line.contains(measures.value("unless", ""))) return std::nullopt;
  double value = number_at("value");
  if (measures.contains("times")) value *= number_at("times");
  if (measures.contains("over")) value /= number_at("over");
  if (!std::isfinite(value)) return std::nullopt;
  Sample sample{.metric = filled(measures.at("metric"), line),
                .unit = filled(measures.at("unit"), line),
                .better = filled(measures.at("better"), line),
                .value = value};
  if (measures.contains("band")) sample.band_bytes = number_at("band");
  if (const auto node = line.find(measures.value("node", "")); node != line.end()) sample.node = as_text(*node);
  return sample;
}

std::vector<Sample> samples_in(const json& measures, const std::string& output) {
  std::vector<Sample> samples;
  for (const auto& text : Pattern(measures.at("pattern")).found_in(output))
    if (const auto value = multinode::number_of<double>(text); value && std::isfinite(*value))
      samples.push_back({.metric = measures.at("metric"),
                         .unit = measures.at("unit"),
                         .better = measures.at("better"),
                         .value = *value});
  return samples;
}

// Why a sample is not what its site wants of that kind of nodes; "": it is.
std::string beyond(const Threshold& threshold, const Sample& sample, const Cluster& cluster) {
  const std::string size = sample.band_bytes < 0 ? "" : ", " + band_name(sample.band_bytes);
  if (threshold.metric != sample.metric && threshold.metric != sample.metric + size) return "";
  const auto& node = sample.node.empty() ? cluster.nodes.front() : sample.node;
  if (!std::regex_match(node, std::regex(threshold.nodes))) return "";
  if (threshold.least ? sample.value >= threshold.value : sample.value <= threshold.value) return "";
  return fmt::format("{}: {}{} is {:.4g} {}, and the site file wants {} {:.4g}", node, sample.metric, size,
                     sample.value, sample.unit, threshold.least ? "at least" : "at most", threshold.value);
}

std::string lines_that_say_why(const std::string& program, const std::string& output) {
  const std::string name = program.substr(program.rfind('/') + 1);
  const std::regex telling(
      "^(\\[rank [0-9]+\\] )?" + name +
      ": .*|.*WRONG.*|.* FAILED$|.*rank [0-9]+: .*|.*cannot start .*|.*error while loading.*|.*allocate memory.*");
  std::vector<std::string> lines, all;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.size() > 400) line.resize(400);
    if (line.empty()) continue;
    all.push_back(line);
    if (std::regex_match(line, telling) && std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
  }
  if (lines.empty()) lines = std::move(all);
  constexpr std::size_t most = 4;
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - most);
  return multinode::join(lines, "\n");
}

// The host that a text names: of several the one in its last part, because watchdogs name first who waits, and then for
// whom. "": none, or more than one.
std::string node_in(const std::string& text, const Cluster& cluster) {
  for (const auto& part : {text.substr(text.rfind("; ") + 1), text}) {
    std::vector<std::string> named;
    for (const auto& node : cluster.nodes)
      if (std::regex_search(part, std::regex("(^|[^A-Za-z0-9.-])" + std::regex_replace(node, std::regex("[.]"), "[.]") +
                                             "($|[^A-Za-z0-9-])")))
        named.push_back(node);
    if (named.size() == 1) return named.front();
  }
  return "";
}

// Who has to take part, as the program says in its JSON lines; no processes: it is not one of the examples, started on
// the nodes, that say it.
struct Asked {
  std::size_t processes, nodes;
};
Asked asked_of(const Check& check, const Cluster& cluster) {
  if (check.where == Where::first_process || check.arguments.find("{common}") == std::string::npos) return {};
  const auto per_node = check.where == Where::one_each ? 1 : static_cast<std::size_t>(cluster.processes_per_node);
  return {cluster.nodes.size() * per_node, cluster.nodes.size()};
}

// Open MPI with ob1 prints over which of its transports a rank reaches another: "Using vader btl for send to [[1,1],0]
// on node a". Other MPIs, and Open MPI over UCX or libfabric, do not say it in one way. Returns false if no line says
// it.
bool look_at_transport(const std::string& output, std::vector<Finding>& findings) {
  const std::regex btl(R"(\[([^\]:]+):\d+\] mca: bml: Using (\S+) btl for send to \S+ on node (\S+))");
  std::set<std::string> seen;
  for (auto match = std::sregex_iterator(output.begin(), output.end(), btl); match != std::sregex_iterator(); ++match) {
    const std::string from = (*match)[1], over = (*match)[2], to = (*match)[3];
    if (over == "self" || !seen.insert(from + " " + over + " " + to).second) continue;
    if (from == to && over != "vader" && over != "sm")
      findings.push_back({"transport",
                          "MPI sends over " + over + " between processes of " + from +
                              ", not through shared memory: look at OMPI_MCA_btl, openmpi-mca-params.conf and /dev/shm",
                          from});
  }
  return !seen.empty();
}

// What a check wrote to the folder of results, which may be another user's; "": nothing.
std::string text_in(const std::filesystem::path& file, std::vector<Finding>& findings) try {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, error))) return "";
  return multinode::ForeignFile(file, 256 << 20, multinode::Links::refused).text();
} catch (const multinode::UsageError& error) {
  findings.push_back({"output", error.what(), ""});
  return "";
}

}  // namespace

Suite parse_suite(const std::string& name) {
  for (const Suite suite : {Suite::smoke, Suite::gate, Suite::deep})
    if (name == name_of(suite)) return suite;
  throw multinode::UsageError("--suite: '" + name + "' is none of smoke, gate, deep");
}
const char* name_of(Suite suite) {
  static constexpr const char* names[] = {"smoke", "gate", "deep", "none"};
  return names[static_cast<std::size_t>(suite)];
}
double budget_seconds(Suite suite) { return suite == Suite::smoke ? 60 : suite == Suite::gate ? 300 : 1800; }

std::string as_text(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string filled(std::string text, const json& values) {
  for (auto at = text.find('{'); at != std::string::npos; at = text.find('{', at + 1)) {
    const auto end = text.find('}', at);
    const std::string key = text.substr(at + 1, end - at - 1);
    if (end != std::string::npos && values.contains(key)) text.replace(at, end - at + 1, as_text(values.at(key)));
  }
  return text;
}

Pattern::Pattern(const std::string& text)
    : compiled(new regex_t{}, [](regex_t* regex) { regfree(regex), delete regex; }) {
  for (auto at = text.find('\\'); at != text.npos; at = text.find('\\', at + 2))
    if (at + 1 < text.size() && std::string_view("0123456789dD").find(text[at + 1]) != std::string_view::npos)
      throw std::runtime_error("'" + text.substr(at, 2) +
                               "' is not in POSIX extended regular expressions: write [0-9] for a digit");
  if (const int error = regcomp(compiled.get(), text.c_str(), REG_EXTENDED); error != 0) {
    std::array<char, 128> why{};
    regerror(error, compiled.get(), why.data(), why.size());
    throw std::runtime_error("the pattern '" + text + "' is wrong: " + why.data());
  }
}

std::vector<std::string> Pattern::found_in(const std::string& lines) const {
  std::vector<std::string> found;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    std::array<regmatch_t, 2> match;
    for (const char* at = line.c_str();
         regexec(compiled.get(), at, 2, match.data(), at == line.c_str() ? 0 : REG_NOTBOL) == 0;) {
      const auto& group = match[compiled->re_nsub > 0 && match[1].rm_so >= 0 ? 1 : 0];
      found.emplace_back(at + group.rm_so, at + group.rm_eo);
      if (match[0].rm_so == match[0].rm_eo) break;
      at += match[0].rm_eo;
    }
  }
  return found;
}

double seconds_on(const Check& check, const Cluster& cluster) {
  return check.seconds * (0.8 + 0.2 * cluster.busy) + 0.05 * static_cast<double>(cluster.nodes.size() - 1);
}
double limit_on(const Check& check, const Cluster& cluster) {
  return std::min(cluster.busy, 5.0) * (check.limit + 0.5 * static_cast<double>(cluster.nodes.size() - 1));
}

std::optional<std::string> cannot_run(const Check& check, const Cluster& cluster) {
  const auto there = [&](const std::string& program) { return std::filesystem::exists(cluster.path_of(program)); };
  for (const Need need : check.needs) {
    if (need == Need::mpi && cluster.launcher == "mnrun") return "MPI needs mpirun or srun, and the launcher is mnrun";
    if (need == Need::mpi && !there("03-message-passing/message_passing_mpi"))
      return "the examples are built without MPI";
    if (need == Need::gloo && !there("03-message-passing/message_passing_gloo"))
      return "the examples are built without Gloo";
    if (need == Need::gpu && cluster.gpus == 0) return cluster.no_gpu;
    if (need == Need::rdma && multinode::rdma_ports("/sys").empty()) return "no RDMA device";
    if (need == Need::images && !std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
      return "no images in /usr/share/datasets/fashion-mnist: install dataset-fashion-mnist";
    if (need == Need::three_nodes && cluster.nodes.size() < 3) return "less than three nodes";
    if (need == Need::several_nodes && cluster.nodes.size() < 2) return "one node only";
    if (need == Need::several_processes &&
        cluster.nodes.size() * static_cast<std::size_t>(cluster.processes_per_node) < 2)
      return "one process only";
  }
  if (!there(check.program)) return check.program + " is not built";
  return std::nullopt;
}

Judged judge(const Check& check, const Cluster& cluster, const Outcome& outcome, const std::filesystem::path& log,
             const std::filesystem::path& json_path) {
  Judged judged;
  // Of a line, what patterns and people need: std::regex overflows the stack at 50 kB.
  std::string output;
  std::istringstream said(text_in(log, judged.findings));
  for (std::string line; std::getline(said, line); output += line.substr(0, 4096) + "\n") continue;

  const auto find = [&](const std::string& detector, const std::string& said, const std::string& node = "") {
    judged.findings.push_back({detector, said, node.empty() ? node_in(said, cluster) : node});
  };
  const std::string name = check.program.substr(check.program.rfind('/') + 1);
  const auto asked = asked_of(check, cluster);
  const Pattern deadline(name + ": .*(timed out after|no (answer|value)|not (answer|read|written)|cannot reach)");
  judged.late = outcome.timed_out || (asked.processes > 0 && outcome.exit_status == multinode::exit_wrong &&
                                      check.exit_status == 0 && !deadline.found_in(output).empty());
  auto quiet = cluster;
  quiet.busy = 1;
  judged.busy = judged.late && had_no_cpu(outcome, limit_on(check, quiet) / (outcome.timed_out ? 1 : deadlines));
  if (judged.busy) {
    judged.reason = fmt::format(
        "did not end in {:.0f} s, because other work took {:.0f} % of the CPU time: run it again on a quiet node",
        outcome.seconds.count(), 100 * outcome.other_work);
  } else if (outcome.timed_out) {
    find("deadline", "did not end by itself, and was ended after " +
                         std::to_string(std::lround(outcome.seconds.count())) + " s. " +
                         (output.empty() ? "It had said nothing."
                                         : "Its last words:\n" + lines_that_say_why(check.program, output)));
  } else if (outcome.exit_status == 77) {
    judged.absent = true;
    judged.reason = lines_that_say_why(check.program, output);
    return judged;
  } else if (outcome.exit_status == check.exit_status) {
    for (const auto& wanted : check.says)
      if (Pattern(wanted).found_in(output).empty())
        judged.findings.push_back({"output",
                                   "did not say '" + wanted + "'" +
                                       multinode::join(Pattern("^differs: .*").found_in(output), "",
                                                       [](const std::string& line) { return "\n" + line; }),
                                   ""});
  }
  if (outcome.left_over > 0)
    find("left over", std::to_string(outcome.left_over) + " of its processes stayed behind, and were killed");
  if (outcome.stuck > 0)
    find("left over", std::to_string(outcome.stuck) +
                          " of its processes could not be killed: they wait in the kernel (state D of ps; look at "
                          "dmesg, at network file systems and at the drivers)");
  if (check.transport && outcome.exit_status == 0 && !look_at_transport(output, judged.findings) &&
      judged.findings.empty()) {
    judged.absent = true;
    judged.reason = "could not determine the transport within a node: no line of the output names it";
  }

  // Its JSON lines.
  bool told_who = false;  // a line says who took part
  std::map<std::string, bool> answered;
  bool explained = outcome.timed_out || judged.busy;  // why it ended with another exit status
  struct Slowness {
    int rank;
    std::string host;
    double time, fastest, waited = 0;  // waited: of `time`, for a CPU
    double working() const { return time - waited; }
  };
  std::map<std::string, std::vector<Slowness>> slowness;                                   // by what
  std::map<std::string, std::map<std::string, std::set<std::string>>> equal;               // what, value, hosts
  std::map<std::string, double> other_work;                                                // by host
  if (cluster.launcher != "srun") other_work[cluster.nodes.front()] = outcome.other_work;  // srun's are no children
  std::istringstream lines(text_in(json_path, judged.findings));
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object()) {
      find("results", "a line of results is no JSON: " + line.substr(0, 200));
      continue;
    }
    if (object.contains("fingerprint")) {
      const auto& of = object.at("fingerprint");
      const auto hosts = of.at("hosts").get<std::set<std::string>>();
      told_who = true;
      judged.hosts = hosts;
      if (asked.processes > 0 && (of.at("world_size") != asked.processes || hosts.size() != asked.nodes))
        find("who took part",
             fmt::format(
                 "{} processes on {} nodes ({}) took part, and {} on {} were asked for: the launcher dropped some, two "
                 "names are of one node, or launcher and MPI do not speak the same PMI (srun --mpi=list)",
                 of.at("world_size").dump(), hosts.size(), multinode::join(hosts, ", "), asked.processes, asked.nodes));
      judged.started = judged.findings.empty() || judged.findings.back().detector != "who took part";
    }
    for (const auto& [key, wanted] : check.answers) {
      if (!object.contains(key)) continue;
      answered[key] = true;
      if (object.at(key) != wanted) find("answer", key + " is " + object.at(key).dump() + ", and should be " + wanted);
    }
    if (object.contains("what") && object.contains("ok") && object.at("ok") == false) {
      find(object.at("what"), object.at("why"), object.at("host"));
      explained = true;
    }
    if (object.contains("what") && object.contains("rank") && object.contains("better")) {
      const std::string what = object.at("what"), host = object.at("host");
      const json& value = object.at("value");
      if (what == "other_work") {
        other_work[host] = value;
        continue;
      }
      if (object.at("better") != "more" && object.at("better") != "less") {
        const std::string text = as_text(value);
        equal[what][text].insert(host);
        if (object.at("better") == "equal") judged.facts.push_back({check.name, what, text, host});
      }
      if (object.at("better") == "more" && value.is_number() && value > 0)
        slowness[what].push_back({object.at("rank"), host, 1 / value.get<double>(), 1 / value.get<double>()});
    }
    if (object.contains("ranks") && object.at("ranks").is_array())
      for (const json& one : object.at("ranks"))
        slowness["its own work"].push_back({one.at("rank"), one.at("host"), one.at("seconds"),
                                            one.value("fastest_seconds", one.at("seconds").get<double>()),
                                            one.value("waited_seconds", 0.0)});
    if (!check.measures.contains("value")) continue;
    if (auto sample = sample_of(check.measures, object)) judged.samples.push_back(*std::move(sample));
  }
  if (check.measures.contains("pattern")) judged.samples = samples_in(check.measures, output);
  for (const auto& [ignored, share] : other_work) judged.other_work = std::max(judged.other_work, share);
  const auto taken = [&](const std::string& host) {
    return other_work.contains(host) ? other_work.at(host) : judged.other_work;
  };
  // What other work explains is no finding.
  const auto explain = [&](double loss, const std::string& what, const std::string& node, double least, bool waits) {
    if (!explained_by_other_work(loss, least, taken(node), waits ? power_of_waiting : power_alone)) return false;
    judged.reason = what + fmt::format("; other work took {:.0f} % of the CPU time", 100 * taken(node));
    return judged.busy = true;
  };
  for (auto& sample : judged.samples) {
    sample.check = check.name;
    sample.other_work = taken(sample.node);
    for (const auto& threshold : check.thresholds)
      if (const auto why = beyond(threshold, sample, cluster);
          !why.empty() &&
          (!check.command.empty() ||  // it may measure what needs no CPU, as a disk's speed
           !explain(std::abs(std::log(sample.value / threshold.value)), why, sample.node, 0, suffers(check))))
        find("threshold", why, sample.node);
  }
  const bool by_launcher = asked.processes > 0, spoke = told_who || output.starts_with(name + ": ") ||
                                                        output.find("\n" + name + ": ") != output.npos ||
                                                        output.find("] " + name + ": ") != output.npos;
  if (by_launcher && (!spoke || outcome.exit_status == multinode::exit_usage)) judged.started = false;
  if (outcome.exit_status == 0 && check.exit_status != 0) {
    find("exit status",
         "ended with status 0, and should have failed: something hides the status of its processes from "
         "job scripts, such as a wrapper of the launcher");
  } else if (outcome.exit_status != check.exit_status && !explained) {
    find("exit status", "ended with status " + std::to_string(outcome.exit_status) +
                            (judged.started ? ":\n" : ", and no process of " + name + " said anything:\n") +
                            lines_that_say_why(check.program, output));
  }
  const bool ended_right = outcome.exit_status == check.exit_status && !outcome.timed_out;
  if (ended_right && by_launcher && !told_who) {  // also where a launcher hides the status of programs that failed
    judged.started = false;
    const auto why = lines_that_say_why(check.program, output);
    find("results", "no line of results says who took part ('fingerprint')" + (why.empty() ? "" : ":\n" + why));
  } else if (ended_right) {
    for (const auto& [key, wanted] : check.answers)
      if (!answered[key]) find("answer", "result field '" + key + "' is missing");
    if (!check.measures.is_null() && judged.samples.empty() && judged.facts.empty())
      find("results", "it measured nothing: no line of results");
  }
  // One of several that is far behind all others: by more than what a busy machine explains.
  for (const auto& [what, of] : slowness) {
    for (const auto& one : of) {
      const auto of_others = [&](auto value) {
        std::vector<double> others;
        for (const auto& other : of)
          if (&other != &one) others.push_back(std::invoke(value, other));
        return median(others);
      };
      // Where ranks share cores, one may have bad luck in all trials, or in one: both show a rank that is slow.
      if (of.size() < 2 || one.time <= 3 * of_others(&Slowness::time) ||
          one.fastest <= 3 * of_others(&Slowness::fastest))
        continue;
      if (one.waited > 0 && one.working() <= 3 * of_others(&Slowness::working)) {
        judged.busy = true;
        judged.reason = fmt::format(
            "rank {} on {} waited for a CPU for {:.0f} % of its time: other processes keep {} busy, or its cgroup is "
            "limited",
            one.rank, one.host, 100 * one.waited / one.time, one.host);
        continue;
      }
      const double factor = one.time / of_others(&Slowness::time);
      const auto why =
          fmt::format("rank {} on {} is {:.2g} times slower than the others: {}", one.rank, one.host, factor, what);
      double least = 1;
      for (const auto& other : of) least = std::min(least, taken(other.host));
      if (!explain(std::log(factor), why, one.host, least, true)) find("slow rank", why, one.host);
    }
  }
  for (const auto& [what, values] : equal) {
    // Of two nodes that differ, the one with the lower limit is to blame, or it is not known which.
    const auto is_less = [&, what = what](const auto& one, const auto& other) {
      return one.second.size() != other.second.size()
                 ? one.second.size() < other.second.size()
                 : one.first != other.first && good_fact(what, one.first, other.first);
    };
    const auto& usual = *std::ranges::max_element(values, is_less);
    for (const auto& value : values)
      for (const auto& host : value.second)
        if (!same_fact(what, usual.first, value.first))
          judged.findings.push_back({"devices",
                                     host + ": " + what + " is '" + value.first + "', elsewhere '" + usual.first + "'",
                                     is_less(value, usual) ? host : ""});
  }
  if (!judged.findings.empty()) judged.absent = judged.busy = false;
  // What only left something behind did its work.
  const bool right = outcome.stuck == 0 && std::ranges::all_of(judged.findings, [](const Finding& finding) {
                       return finding.detector == "left over";
                     });
  judged.started = judged.started && !right;
  return judged;
}

}  // namespace image_check
