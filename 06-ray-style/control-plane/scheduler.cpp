#include "scheduler.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace cluster {

namespace {

constexpr int stopped = 130;                          // as a shell has it for Ctrl-C
constexpr int cannot_execute = 126, not_found = 127;  // as a shell has them

bool printable(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ') || c == 127; });
}

std::string ending(int status) {
  if (status <= 128) return fmt::format("ended with status {}", status);
  const char* name = sigabbrev_np(status - 128);
  return fmt::format("was killed by signal {}", status - 128) + (name ? fmt::format(" (SIG{})", name) : "");
}

}  // namespace

void check_job(const Job& job) {
  const auto require = [](bool right, const std::string& what) {
    if (!right) throw multinode::UsageError(what);
  };
  const std::string& program = job.program();
  require(!program.empty() && program.size() <= 255 && program.front() != '.' &&
              program.find('/') == std::string::npos && printable(program),
          "a job is the name of a program in the job folder, without '/', not beginning with '.'");
  std::size_t bytes = 0;
  for (const std::string& argument : job.arguments()) {
    require(argument.find('\0') == std::string::npos, "an argument of a job holds a zero byte");
    bytes += argument.size() + 1;
  }
  require(bytes <= Scheduler::most_argument_bytes,
          fmt::format("the arguments of a job may have {} bytes together", Scheduler::most_argument_bytes));
  multinode::require_range("the number of workers", job.num_workers(), 1, Scheduler::most_workers);
  multinode::require_range("the GPUs of a worker", job.gpus_per_worker(), 0, Scheduler::most_gpus);
  multinode::require_range("the number of failures", job.max_failures(), -1, 1'000'000);
  require(Placement_IsValid(job.placement()), "the placement of a job is PACK or SPREAD");
}

std::int64_t Scheduler::join(const Hello& hello, NodeLink link) {
  if (!left_.empty()) throw std::runtime_error("the cluster ends: " + left_);
  if (hello.version() != "3") throw std::runtime_error("the head speaks version 3, not '" + hello.version() + "'");
  if (nodes_.size() >= most_nodes) throw std::runtime_error(fmt::format("the cluster has {} nodes", most_nodes));
  if (hello.cpus() < 0 || hello.cpus() > most_cpus || hello.gpus() < 0 || hello.gpus() > most_gpus ||
      hello.host().empty() || hello.host().size() > 255 || !printable(hello.host()))
    throw std::runtime_error("its name, or its number of CPUs or GPUs, is out of range");
  const std::int64_t id = next_node_++;
  Node& node = nodes_[id];
  node.hello = hello;
  node.link = std::move(link);
  node.all = node.free = {hello.cpus(), hello.gpus()};
  node.gpus_used.resize(static_cast<std::size_t>(hello.gpus()));
  ++membership_;
  ToNode message;
  message.mutable_welcome()->set_node(id);
  node.link.send(message);
  surroundings_.log(fmt::format("node {} ({}) joined with {} and {}", id, name(hello), counted(hello.cpus(), "CPU"),
                                counted(hello.gpus(), "GPU")));
  schedule();
  return id;
}

void Scheduler::hear(std::int64_t node, const FromNode& message) {
  const Which& which = message.has_started() ? message.started().which()
                       : message.has_ended() ? message.ended().which()
                                             : message.output().which();
  const auto found = gangs_.find(which.job());
  if (found == gangs_.end()) return;
  auto& [job, gang] = *found;
  const auto rank = static_cast<std::size_t>(which.rank());
  if (which.attempt() != gang.attempt || which.rank() < 0 || rank >= gang.members.size()) return;
  Member& member = gang.members[rank];
  if (member.node != node || member.ended) return;

  if (message.has_started()) {
    if (std::exchange(member.pid, message.started().pid()) == 0 && ++gang.started == gang.job.num_workers() &&
        gang.state == State::running)
      show(job, gang);
  } else if (message.has_output()) {
    const std::string before = fmt::format("(worker {}, {}, {}) ", which.rank(), member.host, member.pid);
    const std::string& text = message.output().text();
    std::string lines;
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = std::min(text.find('\n', begin), text.size());
      lines.append(before).append(text, begin, end - begin).append("\n");
    }
    surroundings_.write(job, lines);
  } else if (message.has_ended()) {
    const Ended& ended = message.ended();
    const std::string who = name(gang, which.rank());
    end(gang, member);
    const bool in_vain = ended.status() == cannot_execute || ended.status() == not_found;
    if (!ended.error().empty())
      fail(job, gang, ended.status() != 0 ? ended.status() : 1, who + ": " + ended.error(), false);
    else if (ended.status() != 0)
      fail(job, gang, ended.status(), who + " " + ending(ended.status()), !in_vain);
    after_last_exit(found);
    schedule();
  }
}

void Scheduler::lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  const std::string what = fmt::format("node {} ({}) is gone: {}", node, name(found->second.hello), why);
  surroundings_.log(what);
  nodes_.erase(found);
  ++membership_;
  for (auto next = gangs_.begin(); next != gangs_.end();) {
    const auto at = next++;
    auto& [job, gang] = *at;
    int lost = 0;
    for (Member& member : gang.members)
      if (member.node == node && !std::exchange(member.ended, true)) ++lost;
    if (lost == 0) continue;
    gang.left -= lost;
    gang.earliest = std::max(gang.earliest, surroundings_.now() + lease);
    fail(job, gang, 1, what);
    after_last_exit(at);
  }
  schedule();
}

std::int64_t Scheduler::submit(const Job& job) {
  check_job(job);
  if (!left_.empty()) throw std::runtime_error("the cluster ends: " + left_);
  if (gangs_.size() >= most_jobs) throw std::runtime_error(fmt::format("the cluster has {} jobs", most_jobs));
  const std::int64_t id = next_job_++;
  gangs_[id].job = job;
  waiting_.insert(id);
  const std::string what = job.program() + ", " + counted(job.num_workers(), "worker");
  say(id, ": submitted: " + what);
  surroundings_.log(fmt::format("job {}: {}", id, what));
  schedule();
  if (const auto found = gangs_.find(id);
      found != gangs_.end() && found->second.state == State::waiting && found->second.waiting.empty())
    wait(id, found->second, fmt::format("job {} is before it", *waiting_.begin()));
  return id;
}

void Scheduler::stop(std::int64_t job) {
  const auto found = gangs_.find(job);
  if (found == gangs_.end()) return;
  Gang& gang = found->second;
  if (!gang.outcome) gang.outcome = Gang::Outcome{stopped, ""};
  if (gang.state == State::running) stop(job, gang);
  after_last_exit(found);
  schedule();
}

void Scheduler::tick() {
  const auto now = surroundings_.now();
  bool due = false;
  for (auto& [job, gang] : gangs_) {
    if (gang.state == State::waiting && gang.earliest != Clock::time_point() && gang.earliest <= now) {
      gang.earliest = {};
      due = true;
    } else if (gang.state == State::stopping && gang.stop_by <= now) {
      gang.stop_by = Clock::time_point::max();
      for (const std::int64_t node : nodes_of(gang)) nodes_.at(node).link.drop();
    }
  }
  if (due) schedule();
}

void Scheduler::leave(const std::string& reason) {
  if (!left_.empty()) return;
  left_ = reason;
  surroundings_.log("the cluster ends: " + reason);
  ToNode message;
  message.mutable_leave()->set_reason(reason);
  for (auto& [id, node] : nodes_) node.link.send(message);
  while (!gangs_.empty()) {
    gangs_.begin()->second.outcome = Gang::Outcome{1, "the cluster ended: " + reason};
    finish(gangs_.begin());
  }
}

Status Scheduler::status() const {
  Status status;
  const std::vector<Slots> free = slots(&Node::free), all = slots(&Node::all);
  for (const auto& [id, node] : nodes_) {
    NodeStatus& one = *status.add_nodes();
    one.set_node(id);
    one.set_host(node.hello.host());
    one.set_pid(node.hello.pid());
    one.set_cpus(node.hello.cpus());
    one.set_cpus_used(node.hello.cpus() - node.free.cpus);
    one.set_gpus(node.hello.gpus());
    one.set_gpus_used(node.hello.gpus() - node.free.gpus);
  }
  for (const auto& [id, gang] : gangs_) {
    JobStatus& one = *status.add_jobs();
    one.set_job(id);
    one.set_program(gang.job.program());
    one.set_num_workers(gang.job.num_workers());
    one.set_failures(gang.failures);
    if (gang.state == State::stopping) one.set_waiting("its processes are ending");
    if (gang.state == State::waiting)
      one.set_waiting(fits(gang.job, sum(all)) ? gang.waiting : why_not(gang.job, free, all));
  }
  return status;
}

// Looks at the first job that waits, and at those behind it only while each can be started or is larger than the whole
// cluster. The sum tells for most of these, without a look at the nodes.
void Scheduler::schedule() {
  std::vector<Slots> free = slots(&Node::free);
  const std::vector<Slots> all = slots(&Node::all);
  const Slots sum_of_all = sum(all);
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const std::int64_t job = *next++;
    Gang& gang = gangs_.at(job);
    if (gang.refused_at == membership_) continue;
    if (gang.earliest > surroundings_.now())
      return wait(job, gang, "its processes may start again once a second, and when the lease of a lost node is over");
    if (!fits(gang.job, sum_of_all)) {
      if (gang.waiting.empty()) wait(job, gang, why_not(gang.job, free, all));  // status() has the newest reason
    } else if (const auto counts = place(gang.job, free); !counts.empty()) {
      start(job, gang, counts);
      free = slots(&Node::free);
      continue;
    } else {
      wait(job, gang, why_not(gang.job, free, all));
      if (fits(gang.job, all)) return;
    }
    gang.refused_at = membership_;
  }
}

std::vector<Slots> Scheduler::slots(Slots Node::*which) const {
  std::vector<Slots> slots;
  for (const auto& [id, node] : nodes_) slots.push_back(node.*which);
  return slots;
}

// The nodes that have processes of the gang.
std::set<std::int64_t> Scheduler::nodes_of(const Gang& gang) {
  std::set<std::int64_t> nodes;
  for (const Member& member : gang.members)
    if (!member.ended) nodes.insert(member.node);
  return nodes;
}

void Scheduler::start(std::int64_t job, Gang& gang, const std::vector<int>& counts) {
  waiting_.erase(job);
  try {
    gang.store = surroundings_.make_store();
  } catch (const std::exception& e) {
    gang.outcome = Gang::Outcome{1, std::string("the head cannot serve the store of the job: ") + e.what()};
    return finish(gangs_.find(job));
  }
  gang.state = State::running;
  gang.waiting.clear();
  gang.earliest = surroundings_.now() + between_attempts;  // for the next one
  gang.left = gang.job.num_workers();
  gang.started = 0;
  ToNode message;
  Start& start = *message.mutable_start();
  start.set_job(job);
  start.set_attempt(gang.attempt);
  start.set_program(gang.job.program());
  *start.mutable_arguments() = gang.job.arguments();
  start.set_world_size(gang.job.num_workers());
  start.set_node_count(static_cast<int>(std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; })));
  start.set_store_port(gang.store.port);
  start.set_store_token(gang.store.token);
  auto count = counts.begin();
  for (auto& [id, node] : nodes_) {
    start.set_count(*count++);
    if (start.count() == 0) continue;
    start.clear_gpus();
    node.free = node.free - slots_of(gang.job, start.count());
    auto gpu = node.gpus_used.begin();
    for (int i = 0; i < start.count(); ++i) {
      Member& member = gang.members.emplace_back();
      member.node = id;
      member.host = node.hello.host();
      for (int g = 0; g < gang.job.gpus_per_worker(); ++g) {
        gpu = std::find(gpu, node.gpus_used.end(), false);
        *gpu = true;
        member.gpus.push_back(static_cast<int>(gpu - node.gpus_used.begin()));
        start.add_gpus(member.gpus.back());
      }
    }
    node.link.send(message);
    start.set_first_rank(start.first_rank() + start.count());
    start.set_node_rank(start.node_rank() + 1);
  }
  surroundings_.log(
      fmt::format("job {} starts on {}, attempt {}", job, counted(start.node_count(), "node"), gang.attempt));
}

// Where the processes are, when all have been started: a line per node.
void Scheduler::show(std::int64_t job, const Gang& gang) {
  std::string lines;
  int nodes = 0;
  for (std::size_t rank = 0; rank < gang.members.size(); ++rank) {
    const Member& member = gang.members[rank];
    if (rank == 0 || member.node != gang.members[rank - 1].node) {
      ++nodes;
      lines +=
          fmt::format("\ncluster: job {}: node {} ({}) has rank {} and up, pids", job, member.node, member.host, rank);
    }
    lines += fmt::format(" {}", member.pid);
  }
  say(job, fmt::format(": {} on {}{}", counted(gang.job.num_workers(), "worker"), counted(nodes, "node"), lines));
}

void Scheduler::end(Gang& gang, Member& member) {
  member.ended = true;
  --gang.left;
  Node& node = nodes_.at(member.node);
  node.free = node.free + slots_of(gang.job, 1);
  for (const int gpu : member.gpus) node.gpus_used[static_cast<std::size_t>(gpu)] = false;
}

void Scheduler::fail(std::int64_t job, Gang& gang, int status, const std::string& what, bool again) {
  if (gang.state != State::running) return;
  ++gang.failures;
  surroundings_.log(fmt::format("job {} failed: {}", job, what));
  if (again && (gang.job.max_failures() < 0 || gang.failures <= gang.job.max_failures()))
    say(job, " failed and will start again: " + what);
  else
    gang.outcome = Gang::Outcome{status, what};
  stop(job, gang);
}

void Scheduler::stop(std::int64_t job, Gang& gang) {
  gang.state = State::stopping;
  gang.stop_by = surroundings_.now() + to_stop;
  ToNode message;
  message.mutable_stop()->set_job(job);
  message.mutable_stop()->set_attempt(gang.attempt);
  for (const std::int64_t node : nodes_of(gang)) nodes_.at(node).link.send(message);
}

// What follows when no process of the gang is left.
void Scheduler::after_last_exit(Gangs::iterator found) {
  auto& [job, gang] = *found;
  if (gang.left > 0) return;
  if (gang.state == State::running) gang.outcome = Gang::Outcome{0, ""};
  if (gang.outcome) return finish(found);
  if (gang.state == State::waiting) return;
  gang.state = State::waiting;
  waiting_.insert(job);
  ++gang.attempt;
  gang.members.clear();
  gang.store = {};
}

void Scheduler::finish(Gangs::iterator found) {
  const auto& [job, gang] = *found;
  const auto& [status, what] = *gang.outcome;
  const std::string verdict = status == 0                         ? "has ended"
                              : status == stopped && what.empty() ? "was stopped"
                                                                  : fmt::format("failed with status {}", status);
  const std::string failures = gang.failures > 0 ? " after " + counted(gang.failures, "failure") : "";
  say(job, " " + verdict + failures + (what.empty() ? "" : ": " + what));
  surroundings_.log(fmt::format("job {} ended with status {}", job, status));
  surroundings_.ended(job, status);
  waiting_.erase(job);
  gangs_.erase(found);
}

void Scheduler::wait(std::int64_t job, Gang& gang, const std::string& why) {
  if (gang.waiting.empty()) say(job, " waits: " + why);
  gang.waiting = why;
}

void Scheduler::say(std::int64_t job, const std::string& what) {
  surroundings_.write(job, fmt::format("cluster: job {}{}\n", job, what));
}

std::string Scheduler::name(const Hello& hello) { return fmt::format("{}, pid {}", hello.host(), hello.pid()); }

std::string Scheduler::name(const Gang& gang, int rank) {
  const Member& member = gang.members[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} ({}{})", rank, member.host, member.pid != 0 ? fmt::format(", pid {}", member.pid) : "");
}

}  // namespace cluster
