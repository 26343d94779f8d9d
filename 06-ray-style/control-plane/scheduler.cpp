#include "scheduler.hpp"

#include <multinode/check.hpp>

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
  if (status <= 128) return "ended with status " + std::to_string(status);
  const char* name = sigabbrev_np(status - 128);
  return "was killed by signal " + std::to_string(status - 128) + (name ? " (SIG" + std::string(name) + ")" : "");
}

void add(Slots& sum, const Slots& slots, int sign) {
  sum = {sum.cpus + sign * slots.cpus, sum.gpus + sign * slots.gpus};
}

// What `count` workers of a job take.
Slots slots_of(const Job& job, int count) { return {count, count * job.gpus_per_worker()}; }

bool fit(const Slots& sum, const Job& job) {
  const Slots wanted = slots_of(job, job.num_workers());
  return wanted.cpus <= sum.cpus && wanted.gpus <= sum.gpus;
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
          "the arguments of a job may have " + std::to_string(Scheduler::most_argument_bytes) + " bytes together");
  const auto in_range = [&](const char* name, int value, int low, int high) {
    require(value >= low && value <= high, std::string(name) + " must be from " + std::to_string(low) + " to " +
                                               std::to_string(high) + ", not " + std::to_string(value));
  };
  in_range("the number of workers", job.num_workers(), 1, Scheduler::most_workers);
  in_range("the GPUs of a worker", job.gpus_per_worker(), 0, 1 << 10);
  in_range("the number of failures", job.max_failures(), -1, 1'000'000);
  require(Placement_IsValid(job.placement()), "the placement of a job is PACK or SPREAD");
}

std::int64_t Scheduler::join(const Hello& hello, NodeLink link) {
  if (!left_.empty()) throw std::runtime_error("the cluster ends: " + left_);
  if (hello.version() != "3") throw std::runtime_error("the head speaks version 3, not '" + hello.version() + "'");
  if (nodes_.size() >= most_nodes) throw std::runtime_error("the cluster has " + std::to_string(most_nodes) + " nodes");
  if (hello.cpus() < 0 || hello.cpus() > 1 << 16 || hello.gpus() < 0 || hello.gpus() > 1 << 10 ||
      hello.host().empty() || hello.host().size() > 255 || !printable(hello.host()))
    throw std::runtime_error("its name, or its number of CPUs or GPUs, is out of range");
  const std::int64_t id = next_node_++;
  Node& node = nodes_[id];
  node.hello = hello;
  node.link = std::move(link);
  node.free = {hello.cpus(), hello.gpus()};
  node.gpus_used.resize(static_cast<std::size_t>(hello.gpus()));
  release(node, 1);
  ToNode message;
  message.mutable_welcome()->set_node(id);
  node.link.send(message);
  surroundings_.log("node " + std::to_string(id) + " (" + name(hello) + ") joined with " +
                    counted(hello.cpus(), "CPU") + " and " + counted(hello.gpus(), "GPU"));
  schedule();
  return id;
}

// A node comes (+1) or goes (-1), with what is free on it.
void Scheduler::release(const Node& node, int sign) {
  ++membership_;
  add(free_, node.free, sign);
  add(all_, {node.hello.cpus(), node.hello.gpus()}, sign);
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
    const std::string before =
        "(worker " + std::to_string(which.rank()) + ", " + member.host + ", " + std::to_string(member.pid) + ") ";
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
    end(job, gang, member);
    const bool in_vain = ended.status() == cannot_execute || ended.status() == not_found;
    if (!ended.error().empty())
      fail(job, gang, ended.status() != 0 ? ended.status() : 1, who + ": " + ended.error(), false);
    else if (ended.status() != 0)
      fail(job, gang, ended.status(), who + " " + ending(ended.status()), !in_vain);
    settle(found);
    schedule();
  }
}

void Scheduler::lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  const std::string what = "node " + std::to_string(node) + " (" + name(found->second.hello) + ") is gone: " + why;
  surroundings_.log(what);
  const Node lost = std::move(found->second);
  release(lost, -1);
  nodes_.erase(found);
  for (const auto& [job, count] : lost.processes) {
    const auto at = gangs_.find(job);
    if (at == gangs_.end()) continue;
    Gang& gang = at->second;
    for (Member& member : gang.members)
      if (member.node == node && !std::exchange(member.ended, true)) --gang.left;
    gang.nodes.erase(node);
    gang.earliest = std::max(gang.earliest, surroundings_.now() + lease);
    fail(job, gang, 1, what);
    settle(at);
  }
  schedule();
}

std::int64_t Scheduler::submit(const Job& job) {
  check_job(job);
  if (!left_.empty()) throw std::runtime_error("the cluster ends: " + left_);
  if (gangs_.size() >= most_jobs) throw std::runtime_error("the cluster has " + std::to_string(most_jobs) + " jobs");
  const std::int64_t id = next_job_++;
  gangs_[id].job = job;
  waiting_.insert(id);
  say(id, ": submitted: " + job.program() + ", " + counted(job.num_workers(), "worker"));
  surroundings_.log("job " + std::to_string(id) + ": " + job.program() + ", " + counted(job.num_workers(), "worker"));
  schedule();
  if (const auto found = gangs_.find(id);
      found != gangs_.end() && found->second.state == State::waiting && found->second.waiting.empty())
    wait(id, found->second, "job " + std::to_string(*waiting_.begin()) + " is before it");
  return id;
}

void Scheduler::stop(std::int64_t job) {
  const auto found = gangs_.find(job);
  if (found == gangs_.end()) return;
  Gang& gang = found->second;
  if (!gang.outcome) gang.outcome = Gang::Outcome{stopped, ""};
  if (gang.state == State::running) stop(job, gang);
  settle(found);
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
      for (const std::int64_t node : gang.nodes) nodes_.at(node).link.drop();
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
    if (gang.state == State::waiting) one.set_waiting(fit(all_, gang.job) ? gang.waiting : why_not(gang.job));
  }
  return status;
}

// Looks at the first job that waits, and at those behind it only while each can be started or is larger than the whole
// cluster. The sums tell for most of them, without a look at the nodes.
void Scheduler::schedule() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const std::int64_t job = *next++;
    Gang& gang = gangs_.at(job);
    if (gang.refused_at == membership_) continue;
    if (gang.earliest > surroundings_.now())
      return wait(job, gang, "its processes may start again once a second, and when the lease of a lost node is over");
    if (!fit(all_, gang.job)) {
      if (gang.waiting.empty()) wait(job, gang, why_not(gang.job));  // status() has the newest reason
      gang.refused_at = membership_;
      continue;
    }
    if (!fit(free_, gang.job)) return wait(job, gang, why_not(gang.job));
    std::vector<Slots> free, all;
    for (const auto& [id, node] : nodes_) {
      free.push_back(node.free);
      all.push_back({node.hello.cpus(), node.hello.gpus()});
    }
    const int workers = gang.job.num_workers(), gpus = gang.job.gpus_per_worker();
    if (const auto counts = place(free, workers, gpus, gang.job.placement()); !counts.empty()) {
      start(job, gang, counts);
      continue;
    }
    wait(job, gang, cluster::why_not(free_, all_, room(free, gpus), workers, gpus));
    if (room(all, gpus) >= workers) return;
    gang.refused_at = membership_;
  }
}

// Why a job waits that needs more than the sum of what is free.
std::string Scheduler::why_not(const Job& job) const {
  return nodes_.empty() ? "the cluster has no nodes"
                        : cluster::why_not(free_, all_, 0, job.num_workers(), job.gpus_per_worker());
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
    node.processes[job] = start.count();
    gang.nodes.insert(id);
    for (Slots* const slots : {&node.free, &free_}) add(*slots, slots_of(gang.job, start.count()), -1);
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
  surroundings_.log("job " + std::to_string(job) + " starts on " + counted(start.node_count(), "node") + ", attempt " +
                    std::to_string(gang.attempt));
}

// Where the processes are, when all have been started: a line per node.
void Scheduler::show(std::int64_t job, const Gang& gang) {
  const std::string before = "cluster: job " + std::to_string(job) + ": ";
  std::string lines;
  std::int64_t nodes = 0;
  for (std::size_t rank = 0; rank < gang.members.size(); ++rank) {
    const Member& member = gang.members[rank];
    if (rank == 0 || member.node != gang.members[rank - 1].node) {
      ++nodes;
      lines += "\n" + before + "node " + std::to_string(member.node) + " (" + member.host + ") has rank " +
               std::to_string(rank) + " and up, pids";
    }
    lines += " " + std::to_string(member.pid);
  }
  surroundings_.write(
      job, before + counted(gang.job.num_workers(), "worker") + " on " + counted(nodes, "node") + lines + "\n");
}

void Scheduler::end(std::int64_t job, Gang& gang, Member& member) {
  member.ended = true;
  --gang.left;
  Node& node = nodes_.at(member.node);
  for (Slots* const slots : {&node.free, &free_}) add(*slots, slots_of(gang.job, 1), 1);
  for (const int gpu : member.gpus) node.gpus_used[static_cast<std::size_t>(gpu)] = false;
  if (--node.processes.at(job) == 0) {
    node.processes.erase(job);
    gang.nodes.erase(member.node);
  }
}

void Scheduler::fail(std::int64_t job, Gang& gang, int status, const std::string& what, bool again) {
  if (gang.state != State::running) return;
  ++gang.failures;
  surroundings_.log("job " + std::to_string(job) + " failed: " + what);
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
  for (const std::int64_t node : gang.nodes) nodes_.at(node).link.send(message);
}

// What follows when no process of the gang is left.
void Scheduler::settle(Gangs::iterator found) {
  auto& [job, gang] = *found;
  if (gang.left > 0) return;
  if (gang.state == State::running) gang.outcome = Gang::Outcome{0, ""};
  if (gang.outcome) return finish(found);
  if (gang.state == State::waiting) return;
  gang.state = State::waiting;
  waiting_.insert(job);
  ++gang.attempt;
  gang.members.clear();
  gang.nodes.clear();
  gang.store = {};
}

void Scheduler::finish(Gangs::iterator found) {
  const auto& [job, gang] = *found;
  const auto& [status, what] = *gang.outcome;
  const std::string failures = gang.failures > 0 ? " after " + counted(gang.failures, "failure") : std::string();
  say(job, (status == 0                         ? " has ended"
            : status == stopped && what.empty() ? " was stopped"
                                                : " failed with status " + std::to_string(status)) +
               failures + (what.empty() ? "" : ": " + what));
  surroundings_.log("job " + std::to_string(job) + " ended with status " + std::to_string(status));
  surroundings_.ended(job, status);
  waiting_.erase(job);
  gangs_.erase(found);
}

void Scheduler::wait(std::int64_t job, Gang& gang, const std::string& why) {
  if (gang.waiting.empty()) say(job, " waits: " + why);
  gang.waiting = why;
}

void Scheduler::say(std::int64_t job, const std::string& what) {
  surroundings_.write(job, "cluster: job " + std::to_string(job) + what + "\n");
}

std::string Scheduler::name(const Hello& hello) { return hello.host() + ", pid " + std::to_string(hello.pid()); }

std::string Scheduler::name(const Gang& gang, int rank) {
  const Member& member = gang.members[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " (" + member.host +
         (member.pid != 0 ? ", pid " + std::to_string(member.pid) : "") + ")";
}

}  // namespace cluster
