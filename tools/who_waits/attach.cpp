#include "attach.hpp"

#include "packing.hpp"
#include "stacks.hpp"
#include "verdict.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/text.hpp>
#include <multinode/process/process_tree.hpp>
#include <multinode/world/report.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <set>

namespace who_waits {

namespace {

constexpr std::size_t at_a_time = 4;  // processes of a node, which are stopped for a moment

std::string link_of(const std::filesystem::path& link) {
  std::error_code error;
  return std::filesystem::read_symlink(link, error).string();
}

bool is_named(const std::filesystem::path& process, const std::string& name) {
  const auto base = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  if (base(link_of(process / "exe")) == name) return true;
  std::ifstream words(process / "cmdline", std::ios::binary);  // separated by zeros
  std::string word;
  for (int i = 0; i < 3 && std::getline(words, word, '\0'); ++i)  // python3 -u train.py
    if (base(word) == name) return true;
  return false;
}

bool does_the_work(const std::filesystem::path& process) {  // it has loaded a library of communication
  std::ifstream maps(process / "maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  return std::ranges::any_of(std::to_array({"libmpi", "libmpich", "libnccl", "libgloo", "libcudart", "libtorch"}),
                             [&](const char* name) { return text.find(name) != std::string::npos; });
}

}  // namespace

std::vector<RankProcess> ranks_of(const std::string& what) {
  const std::string own = link_of("/proc/self/exe");
  const auto wanted_pid = multinode::number_of<int>(what);
  const std::string job = what.starts_with("job:") ? what.substr(4) : "";
  std::vector<std::pair<int, multinode::Launch>> found;
  for (const std::string& name : multinode::names_in("/proc")) {
    const auto pid = multinode::parse_decimal<int>(name);
    const std::filesystem::path process = "/proc/" + name;
    if (!pid) continue;
    if (*pid == ::getpid() || link_of(process / "exe") == own) continue;
    const multinode::Environment environment = multinode::environment_of(*pid);
    const auto is_job = [&](const char* variable) {
      const auto one = environment.find(variable);
      return one != environment.end() && one->second == job;
    };
    if (!job.empty() && !is_job("SLURM_JOB_ID") && !is_job("PBS_JOBID")) continue;
    if (job.empty() && !wanted_pid && !is_named(process, what)) continue;
    try {
      const multinode::Launch launch = multinode::read_launch(environment);
      if (launch.launcher != "none") found.emplace_back(*pid, launch);
    } catch (const multinode::UsageError&) {  // it has contradictory variables: no rank is known
    }
  }
  const auto below = [&](int pid) {
    while (pid > 1 && pid != *wanted_pid) pid = multinode::process_state(pid).parent;
    return pid == *wanted_pid;
  };
  std::map<int, RankProcess> ranks;
  std::map<std::string, std::vector<int>> runs;
  for (const auto& [pid, launch] : found) {
    if (wanted_pid && !below(pid)) continue;
    const int rank = launch.rank.value;
    const std::string run = launch.launcher + " " + multinode::attempt_name(launch);
    const auto known = ranks.find(rank);
    const bool better = known == ranks.end() || does_the_work(fmt::format("/proc/{}", pid)) ||
                        !does_the_work(fmt::format("/proc/{}", known->second.pid));
    if (job.empty() || does_the_work(fmt::format("/proc/{}", pid))) runs[run].push_back(pid);
    if (better) ranks[rank] = {rank, pid, run};
  }
  if (runs.size() > 1 && job.empty()) {
    std::vector<std::string> texts;
    for (const auto& [run, pids] : runs) texts.push_back(fmt::format("pid {}", fmt::join(pids, ", ")));
    throw multinode::UsageError(fmt::format("'{}' has {} runs here ({}): give --attach the pid of one's launcher", what,
                                            runs.size(), fmt::join(texts, "; ")));
  }
  std::vector<RankProcess> out;
  for (const auto& [rank, process] : ranks) out.push_back(process);
  return out;
}

int attach(multinode::World& world, const std::string& what, const std::string& json) {
  const std::vector<RankProcess> own = ranks_of(what);
  std::vector<ProcessStacks> stacks;
  for (std::size_t i = 0; i < own.size(); i += at_a_time) {
    std::vector<std::future<ProcessStacks>> some;
    for (std::size_t j = i; j < std::min(own.size(), i + at_a_time); ++j)
      some.push_back(std::async(std::launch::async, stacks_of, own[j].pid));
    for (std::size_t j = 0; j < some.size(); ++j) {
      stacks.push_back(some[j].get());
      stacks.back().rank = own[i + j].rank;
    }
  }
  std::set<std::pair<int, int>> seen;  // test hosts of one machine see each other's processes
  std::vector<ProcessStacks> all;
  for (std::string& text : world.gather_on_rank_0("the stacks", packed(stacks)))
    for (ProcessStacks& one : unpacked<std::vector<ProcessStacks>>(std::move(text)))
      if (seen.emplace(one.rank, one.pid).second) all.push_back(std::move(one));
  int status = multinode::exit_right;
  if (world.rank() == 0) {
    std::set<std::string> hosts;
    double stopped = 0;
    for (const ProcessStacks& one : all) hosts.insert(one.host), stopped = std::max(stopped, one.stopped);
    if (all.empty()) {
      std::cerr << fmt::format(
          "who_waits: no process of '{}' has a rank on {} node{}: see ps, or give the pid of mpirun\n", what,
          world.node_count(), world.node_count() == 1 ? "" : "s");
    } else {
      const std::vector<std::string> lines = tree(all);
      std::cout << fmt::format("who_waits: {} rank{} of '{}' on {} node{}, stopped for at most {:.2f} s\n  {}\n",
                               all.size(), all.size() == 1 ? "" : "s", what, hosts.size(), hosts.size() == 1 ? "" : "s",
                               stopped, multinode::join(lines, "\n  ", multinode::one_line));
      multinode::JsonLines file(json, true);
      for (const ProcessStacks& one : all) {
        nlohmann::json threads = nlohmann::json::array();
        for (const Stack& stack : one.threads) {
          nlohmann::json frames = nlohmann::json::array();
          for (const Frame& frame : stack) frames.push_back({{"function", frame.function}, {"place", frame.place}});
          threads.push_back(std::move(frames));
        }
        file.write({{"what", "stack"},
                    {"rank", one.rank},
                    {"host", one.host},
                    {"pid", one.pid},
                    {"problem", one.problem},
                    {"stopped", one.stopped},
                    {"threads", threads}});
      }
    }
    const bool some = std::ranges::any_of(all, [](const ProcessStacks& one) { return !one.threads.empty(); });
    if (!some) status = multinode::exit_wrong;
  }
  return std::stoi(world.broadcast("the end", std::to_string(status)));
}

}  // namespace who_waits
