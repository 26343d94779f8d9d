#include "attach.hpp"

#include "packing.hpp"
#include "queues.hpp"
#include "stacks.hpp"
#include "verdict.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/process/process_tree.hpp>
#include <multinode/world/report.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <sstream>
#include <thread>

namespace who_waits {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t at_a_time = 4;  // processes of a node, which are stopped for a moment
constexpr std::chrono::seconds between_looks{2};

bool is_named(const std::filesystem::path& process, const std::filesystem::path& name) {
  const auto whole = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::weakly_canonical(path, error);
  };
  const auto is = [&](const std::filesystem::path& path) {
    return path.filename() == name.filename() &&
           (!name.has_parent_path() || whole(link_of(process / "cwd") / path) == whole(name));
  };
  if (is(link_of(process / "exe"))) return true;
  std::ifstream words(process / "cmdline", std::ios::binary);  // separated by zeros
  std::string word;
  for (int i = 0; i < 3 && std::getline(words, word, '\0'); ++i)  // python3 -u train.py
    if (is(word)) return true;
  return false;
}

bool does_the_work(const std::filesystem::path& process) {  // it has loaded a library of communication
  std::ifstream maps(process / "maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  return std::ranges::any_of(std::to_array({"libmpi", "libmpich", "libnccl", "libgloo", "libcudart", "libtorch"}),
                             [&](const char* name) { return text.find(name) != std::string::npos; });
}

std::optional<multinode::Launch> launch_of(multinode::Environment environment) {
  for (int i = 0; i < 2; ++i) {
    try {
      const multinode::Launch launch = multinode::read_launch(environment);
      if (launch.launcher != "none") return launch;
    } catch (const multinode::UsageError&) {  // it has contradictory variables
    }
    environment.try_emplace("LOCAL_RANK", "0");  // RANK and WORLD_SIZE are enough for torch
  }
  return std::nullopt;
}

pid_t parent_of(pid_t pid) { return multinode::process_state(pid).parent; }

// The processes of this node that may be meant.
std::vector<pid_t> processes_of(const std::string& what) {
  const std::string own = link_of("/proc/self/exe");
  const auto wanted = multinode::number_of<pid_t>(what);
  const std::string job = what.starts_with("job:") ? what.substr(4) : "";
  std::vector<pid_t> found;
  for (const std::string& name : multinode::names_in("/proc")) {
    const auto pid = multinode::parse_decimal<pid_t>(name);
    const std::filesystem::path process = "/proc/" + name;
    if (!pid || *pid == ::getpid() || link_of(process / "exe") == own) continue;
    if (wanted) {
      pid_t above = *pid;
      while (above > 1 && above != *wanted) above = parent_of(above);
      if (above != *wanted) continue;
    } else if (job.empty()) {
      if (!is_named(process, what)) continue;
    } else {
      const multinode::Environment environment = multinode::environment_of(*pid);
      const auto is = [&](const char* id) { return environment.contains(id) && environment.at(id) == job; };
      if (!is("SLURM_JOB_ID") && !is("PBS_JOBID")) continue;
    }
    found.push_back(*pid);
  }
  return found;
}

// "pid 12 of alice" of a process that may be meant, whose environment this user may not read; "": of none.
std::string hidden_process(const std::string& what) {
  for (const pid_t pid : processes_of(what)) {
    const std::string process = fmt::format("/proc/{}", pid);
    struct stat status {};
    if (::access((process + "/environ").c_str(), R_OK) == 0 || ::stat(process.c_str(), &status) != 0) continue;
    const passwd* const user = ::getpwuid(status.st_uid);
    return fmt::format("pid {} of {} on {}", pid, user ? user->pw_name : fmt::format("user {}", status.st_uid),
                       multinode::host_name());
  }
  return "";
}

// Where the ranks are that no node has found; "": there are none, or a single process was wanted.
std::string missing(const std::vector<ProcessStacks>& all, const std::string& what) {
  std::set<int> ranks;
  std::map<std::string, int> ended;  // on each node, or more than there are if that is not known
  int elsewhere = all[0].world_size;
  for (int rank = 0; rank < all[0].world_size; ++rank) ranks.insert(rank);
  for (const ProcessStacks& one : all) {
    if (std::to_string(one.pid) == what) return "";
    ranks.erase(one.rank);
    if (ended.emplace(one.host, one.local_size ? one.local_size : INT_MAX).second) elsewhere -= one.local_size;
    --ended[one.host];
  }
  if (ranks.empty()) return "";
  const bool one = ranks.size() == 1;
  const bool some = std::ranges::any_of(ended, [](const auto& host) { return host.second > 0; });
  std::string text = fmt::format("{} of {}", rank_text(ranks), all[0].world_size);
  if (some || elsewhere <= 0) text += one ? " has ended" : " have ended";
  if (some && elsewhere > 0) text += ", or";
  if (elsewhere > 0)
    text += fmt::format(" {} on a node that was not asked: mpirun -H node0,node1 -N 1 who_waits --attach {}",
                        one ? "is" : "are", multinode::number_of<pid_t>(what) ? "NAME" : what);
  return text;
}

}  // namespace

std::vector<RankProcess> ranks_of(const std::string& what) {
  std::map<pid_t, RankProcess> found;
  for (const pid_t pid : processes_of(what))
    if (const auto launch = launch_of(multinode::environment_of(pid)))
      found[pid] = {.rank = launch->rank.value,
                    .pid = pid,
                    .world_size = launch->world_size.value,
                    .local_size = launch->local_size ? launch->local_size->value : 0,
                    .works = does_the_work(fmt::format("/proc/{}", pid)),
                    .run = fmt::format("{} {} {}", launch->launcher, multinode::attempt_name(*launch),
                                       launch->master_port.value)};
  std::set<pid_t> others;  // that are above a rank's process, as its launcher, or below, as the workers that it forks
  for (const auto& [pid, one] : found)
    for (pid_t above = parent_of(pid); above > 1; above = parent_of(above))
      if (const auto outer = found.find(above); outer != found.end()) {
        const bool same = outer->second.run == one.run && outer->second.rank == one.rank;
        others.insert(same && outer->second.works ? pid : above);
      }
  for (const pid_t pid : others) found.erase(pid);
  const bool by_name = !what.starts_with("job:") && !multinode::number_of<pid_t>(what);
  std::map<int, RankProcess> ranks;
  std::map<std::string, std::vector<pid_t>> runs;
  for (const auto& [pid, one] : found) {
    RankProcess& known = ranks[one.rank];
    const bool again =
        by_name && known.pid && known.works && one.works;  // two runs, which their launcher does not name
    if (!what.starts_with("job:") || one.works) runs[again ? one.run + "again" : one.run].push_back(pid);
    if (one.works || !known.works) known = one;
  }
  if (runs.size() > 1 && !what.starts_with("job:")) {
    std::vector<std::string> texts;
    for (const auto& [run, pids] : runs) texts.push_back(fmt::format("pid {}", fmt::join(pids, ", ")));
    throw multinode::UsageError(fmt::format("'{}' has {} runs here ({}): give --attach the pid of one's launcher", what,
                                            runs.size(), fmt::join(texts, "; ")));
  }
  return {std::views::values(ranks).begin(), std::views::values(ranks).end()};
}

namespace {

// The stacks and message queues of this node's ranks.
std::vector<ProcessStacks> look_at(const std::vector<RankProcess>& own) {
  std::vector<ProcessStacks> stacks;
  for (std::size_t i = 0; i < own.size(); i += at_a_time) {
    std::vector<std::future<ProcessStacks>> some;
    for (std::size_t j = i; j < std::min(own.size(), i + at_a_time); ++j)
      some.push_back(std::async(std::launch::async, [process = own[j]] {
        ProcessStacks one = stacks_of(process.pid);
        one.queues = queues_of(process.pid, queue_reader());
        one.process = state_of_threads(process.pid);
        one.rank = process.rank, one.world_size = process.world_size, one.local_size = process.local_size;
        return one;
      }));
    for (std::future<ProcessStacks>& one : some) stacks.push_back(one.get());
  }
  return stacks;
}

// What NCCL's RAS says of the job that a rank is in (NCCL 2.24 or newer); "": it does not answer.
std::string status_of_nccl(const std::vector<RankProcess>& own) {
  std::set<std::string> asked;  // the ranks of a node usually share one address
  for (const RankProcess& one : own) {
    const std::string process = fmt::format("/proc/{}/", one.pid);
    const multinode::Environment environment = multinode::environment_of(one.pid);
    const auto address = environment.find("NCCL_RAS_ADDR");
    const bool may = address != environment.end() ||
                     multinode::read_text(process + "maps").value_or("").find("nccl") != std::string::npos;
    if (!may || link_of(process + "ns/net") != link_of("/proc/self/ns/net")) continue;  // another job may be there
    const std::string place = address == environment.end() ? "localhost:28028" : address->second;
    if (!asked.insert(place).second) continue;
    const std::string head = fmt::format("NCCL's RAS at {} says:\n", place);
    std::string text;
    try {
      multinode::TcpClient server(multinode::parse_endpoint(place, "NCCL_RAS_ADDR"), 500ms, [](auto&, auto&) {});
      multinode::Deadline deadline(15s);
      server.send("verbose status\n", deadline, "asking");
      int lines = 0;
      for (char c; text.size() < 1 << 16 && lines < 20; text += c, lines += c == '\n')
        server.receive(&c, 1, deadline, "reading");
      return head + text + "... more: ncclras -v\n";
    } catch (const std::exception&) {  // it has closed the connection after its answer, or does not answer
    }
    if (!text.empty()) return head + text;
  }
  return "";
}

// What the queues tell: why ranks wait, and which messages no receive takes.
std::vector<std::string> queue_lines(const std::vector<ProcessStacks>& all) {
  std::vector<std::string> lines;
  std::set<int> moving;
  std::map<std::string, std::set<int>> problems;
  bool some = false;
  for (const ProcessStacks& one : all) {
    some = some || !one.queues.communicators.empty();
    if (one.moves) moving.insert(one.rank);
    if (!one.queues.problem.empty()) problems[one.queues.problem].insert(one.rank);
  }
  const std::string seconds = fmt::format("{} s", between_looks.count());
  if (!moving.empty())
    lines.push_back(fmt::format("{} still moved: other stacks or messages {} later", rank_text(moving), seconds));
  if (some) {
    const std::vector<RankState> states = states_of(all, static_cast<double>(between_looks.count()));
    for (const auto& more : {groups(states), explain(states).lines})
      lines.insert(lines.end(), more.begin(), more.end());
  }
  for (const ProcessStacks& one : all)
    for (const QueuedCommunicator& in : one.queues.communicators)
      for (const QueuedMessage& message : in.messages)
        if (message.queue == Queue::unexpected && lines.size() < 64)
          lines.push_back(fmt::format("rank {} has a message with tag {} from rank {} of {} that it does not receive",
                                      one.rank, message.tag, message.peer, in.name));
  for (const auto& [problem, ranks] : problems)
    lines.push_back(fmt::format("no message queues of {}: {}", rank_text(ranks), problem));
  return lines;
}

}  // namespace

int attach(multinode::World& world, const std::string& what, const std::string& json) {
  const std::vector<RankProcess> own = ranks_of(what);
  std::vector<ProcessStacks> stacks = look_at(own);
  if (!own.empty()) {
    std::this_thread::sleep_for(between_looks);
    std::vector<ProcessStacks> later = look_at(own);
    for (std::size_t i = 0; i < later.size(); ++i) {
      later[i].moves = later[i].threads != stacks[i].threads || later[i].queues != stacks[i].queues;
      later[i].stopped = std::max(later[i].stopped, stacks[i].stopped);
    }
    stacks = std::move(later);
  }
  std::set<std::pair<int, int>> seen;  // test hosts of one machine see each other's processes
  std::vector<ProcessStacks> all;
  for (std::string& text : world.gather_on_rank_0("the stacks", packed(stacks)))
    for (ProcessStacks& one : unpacked<std::vector<ProcessStacks>>(std::move(text)))
      if (seen.emplace(one.rank, one.pid).second) all.push_back(std::move(one));
  auto hidden = world.gather_on_rank_0("whose", own.empty() ? hidden_process(what) : "");
  std::erase(hidden, "");
  auto nccl = world.gather_on_rank_0("what NCCL says", status_of_nccl(own));
  std::erase(nccl, "");
  if (world.rank() == 0) {
    std::set<std::string> hosts;
    double stopped = 0;
    for (const ProcessStacks& one : all) hosts.insert(one.host), stopped = std::max(stopped, one.stopped);
    if (all.empty() && !hidden.empty()) {
      multinode::say("who_waits", fmt::format("'{0}' is {1}, and not yours to look into: sudo \"$(command -v "
                                              "who_waits)\" --attach {0}",
                                              what, hidden[0]));
    } else if (all.empty()) {
      multinode::say("who_waits",
                     fmt::format("no process of '{}' has a rank on {} node{}: see ps, or give the pid of mpirun", what,
                                 world.node_count(), world.node_count() == 1 ? "" : "s"));
    } else {
      std::vector<std::string> lines = tree(all);
      if (const std::string text = missing(all, what); !text.empty()) lines.insert(lines.begin(), text);
      for (const std::string& line : queue_lines(all)) lines.push_back(line);
      std::istringstream text(nccl.empty() ? "" : nccl[0]);
      for (std::string line; std::getline(text, line);) lines.push_back(line);
      std::cout << fmt::format("who_waits: {} rank{} of '{}' on {} node{}, stopped for at most {:.2f} s\n  {}\n",
                               all.size(), all.size() == 1 ? "" : "s", what, hosts.size(), hosts.size() == 1 ? "" : "s",
                               stopped, multinode::join(lines, "\n  ", multinode::one_line));
      multinode::JsonLines file(json, true);
      for (const ProcessStacks& one : all) {
        nlohmann::json threads = nlohmann::json::array();
        for (const Stack& stack : one.threads) {
          nlohmann::json& frames = threads.emplace_back(nlohmann::json::array());
          for (const Frame& frame : stack) frames.push_back({{"function", frame.function}, {"place", frame.place}});
        }
        file.write({{"what", "stack"},
                    {"rank", one.rank},
                    {"host", one.host},
                    {"pid", one.pid},
                    {"world_size", one.world_size},
                    {"problem", one.problem},
                    {"stopped", one.stopped},
                    {"moves", one.moves},
                    {"threads", threads}});
      }
    }
  }
  const bool read = std::ranges::any_of(all, [](const ProcessStacks& one) { return !one.threads.empty(); });
  const int status = read ? multinode::exit_right : multinode::exit_wrong;  // rank 0's counts
  return std::stoi(world.broadcast("the end", std::to_string(status)));
}

}  // namespace who_waits
