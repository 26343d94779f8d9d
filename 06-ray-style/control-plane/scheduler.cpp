#include "scheduler.hpp"

#include "placement.hpp"

#include <multinode/base/options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace cluster {

namespace {

constexpr int stopped = 130;                          // as a shell has it for Ctrl-C
constexpr int cannot_execute = 126, not_found = 127;  // likewise

std::string ending(int status) {
  if (status <= 128) return fmt::format("ended with status {}", status);
  const char* name = sigabbrev_np(status - 128);
  return fmt::format("was killed by signal {}", status - 128) + (name ? fmt::format(" (SIG{})", name) : "");
}

}  // namespace

void Scheduler::join(std::int64_t id, const json& hello) {
  Node node{hello.at("host"), hello.at("pid"), hello.at("cpus"), hello.at("cpus")};
  surroundings_.log(
      fmt::format("node {} ({}, pid {}) joined with {}", id, node.host, node.pid, counted(node.cpus, "CPU")));
  nodes_.emplace(id, std::move(node));
  if (left_.empty())
    surroundings_.to_node(id, {{"welcome", id}});
  else
    surroundings_.to_node(id, {{"leave", left_}});
  schedule();
}

void Scheduler::hear(std::int64_t node, const json& message) {
  if (!message.contains("rank")) return;  // a heartbeat
  const auto found = gangs_.find(message.at("job"));
  if (found == gangs_.end()) return;
  auto& [job, gang] = *found;
  const auto number = message.at("rank").get<std::size_t>();
  if (message.at("attempt") != gang.attempt || number >= gang.ranks.size()) return;
  Rank& rank = gang.ranks[number];
  if (rank.node != node || rank.ended) return;

  if (message.contains("pid")) {
    if (std::exchange(rank.pid, message["pid"].get<std::int64_t>()) == 0 && ++gang.started == gang.job.workers &&
        gang.state == State::running)
      show(job, gang);
    return;
  }
  const int status = message.at("status");
  rank.ended = true;
  --gang.left;
  ++nodes_.at(node).free;
  if (status != 0) {
    const std::string error = message.value("error", "");
    fail(job, gang, status,
         fmt::format("rank {} ({}, pid {}) ", number, rank.host, rank.pid) + (error.empty() ? ending(status) : error),
         status != cannot_execute && status != not_found);
  }
  after_last_exit(found);
  schedule();
}

void Scheduler::lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  const std::string what =
      fmt::format("node {} ({}, pid {}) is gone: {}", node, found->second.host, found->second.pid, why);
  surroundings_.log(what);
  nodes_.erase(found);
  surroundings_.to_node(node, {{"leave", "the head has given this node up: " + why}});
  for (auto next = gangs_.begin(); next != gangs_.end();) {
    const auto at = next++;
    auto& [job, gang] = *at;
    int lost = 0;
    for (Rank& rank : gang.ranks)
      if (rank.node == node && !std::exchange(rank.ended, true)) ++lost;
    if (lost == 0) continue;
    gang.left -= lost;
    gang.earliest = std::max(gang.earliest, surroundings_.now() + lease);
    fail(job, gang, 1, what);
    after_last_exit(at);
  }
  schedule();
}

void Scheduler::submit(std::int64_t job, const Job& what) {
  if (what.command.empty()) throw multinode::UsageError("it has no program");
  multinode::require_range("--num-workers", what.workers, 1, 10'000);
  multinode::require_range("--max-failures", what.max_failures, -1, 1'000'000);
  Gang& gang = gangs_[job];
  gang.job = what;
  gang.give_up = surroundings_.now() + std::chrono::milliseconds(what.timeout_ms);
  surroundings_.log(fmt::format("job {}: {}, {}", job, what.command.at(0), counted(what.workers, "worker")));
  if (!left_.empty()) {
    gang.outcome = {1, "the cluster ends: " + left_};
    return finish(gangs_.find(job));
  }
  schedule();
}

void Scheduler::stop(std::int64_t job) {
  const auto found = gangs_.find(job);
  if (found == gangs_.end()) return;
  Gang& gang = found->second;
  if (!gang.outcome) gang.outcome = {stopped, ""};
  if (gang.state == State::running) stop(job, gang);
  after_last_exit(found);
  schedule();
}

void Scheduler::tick() {
  const auto now = surroundings_.now();
  std::map<std::int64_t, std::string> late;
  for (auto next = gangs_.begin(); next != gangs_.end();) {
    const auto at = next++;
    auto& [job, gang] = *at;
    if (gang.state == State::waiting && now >= gang.give_up) {
      gang.outcome = {1, why_not(gang.job) + fmt::format(", for {} s", gang.job.timeout_ms / 1000)};
      finish(at);
    } else if (gang.state == State::stopping && now >= gang.stop_by) {
      for (const Rank& rank : gang.ranks)
        if (!rank.ended) late[rank.node] = fmt::format("it did not end the processes of job {} within 10 s", job);
    }
  }
  for (const auto& [node, why] : late) lose(node, why, {});
  schedule();
}

void Scheduler::leave(const std::string& reason) {
  if (!left_.empty()) return;
  left_ = reason;
  surroundings_.log("the cluster ends: " + reason);
  for (const auto& [id, node] : nodes_) surroundings_.to_node(id, {{"leave", reason}});
  while (!gangs_.empty()) {
    gangs_.begin()->second.outcome = {1, "the cluster ended: " + reason};
    finish(gangs_.begin());
  }
}

Scheduler::json Scheduler::status() const {
  json nodes = json::array(), jobs = json::array();
  for (const auto& [id, node] : nodes_)
    nodes.push_back({std::to_string(id), node.host, std::to_string(node.pid),
                     fmt::format("{}/{}", node.cpus - node.free, node.cpus)});
  for (const auto& [id, gang] : gangs_)
    jobs.push_back({std::to_string(id), gang.job.command.at(0), std::to_string(gang.job.workers),
                    std::to_string(gang.failures),
                    gang.state == State::waiting    ? "waits for free places"
                    : gang.state == State::stopping ? "its processes are ending"
                                                    : "running"});
  return {{"nodes", nodes}, {"jobs", jobs}};
}

// Starts what fits, the oldest job first.
void Scheduler::schedule() {
  for (auto next = gangs_.begin(); next != gangs_.end();) {
    const auto at = next++;
    auto& [job, gang] = *at;
    if (gang.state != State::waiting || gang.earliest > surroundings_.now() || !left_.empty()) continue;
    if (const auto counts = place(gang.job.workers, gang.job.spread, free_cpus()); !counts.empty())
      start(job, gang, counts);
    else if (!std::exchange(gang.said_waiting, true))
      say(job, " waits: " + why_not(gang.job));
  }
}

std::vector<int> Scheduler::free_cpus() const {
  std::vector<int> free;
  for (const auto& [id, node] : nodes_) free.push_back(node.free);
  return free;
}

std::string Scheduler::why_not(const Job& job) const {
  int free = 0, all = 0;
  for (const auto& [id, node] : nodes_) free += node.free, all += node.cpus;
  return fmt::format("{} want {}, {} of {} free", counted(job.workers, "worker"), counted(job.workers, "CPU"), free,
                     all);
}

void Scheduler::start(std::int64_t job, Gang& gang, const std::vector<int>& counts) {
  try {
    gang.store = surroundings_.make_store();
  } catch (const std::exception& e) {
    gang.outcome = {1, std::string("the head cannot serve the store of its ranks: ") + e.what()};
    return finish(gangs_.find(job));
  }
  gang.state = State::running;
  gang.earliest = surroundings_.now() + between_attempts;  // for the next one
  gang.left = gang.job.workers;
  gang.started = 0;
  gang.said_waiting = false;
  json start = {{"job", job},
                {"attempt", gang.attempt},
                {"command", gang.job.command},
                {"folder", gang.job.folder},
                {"world_size", gang.job.workers},
                {"store_port", gang.store.port},
                {"store_token", gang.store.token}};
  start["node_count"] = std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; });
  json nodes = json::array();
  std::vector<std::pair<std::int64_t, json>> messages;
  auto count = counts.begin();
  for (auto& [id, node] : nodes_) {
    const int here = *count++;
    if (here == 0) continue;
    start["first_rank"] = gang.ranks.size();
    start["count"] = here;
    start["node_rank"] = nodes.size();
    nodes.push_back(id);
    node.free -= here;
    for (int i = 0; i < here; ++i) gang.ranks.push_back({id, 0, node.host});
    messages.emplace_back(id, start);
  }
  surroundings_.to_client(job, {{"nodes", nodes}});  // first: the client reads the output from them
  for (const auto& [id, message] : messages) surroundings_.to_node(id, {{"start", message}});
  surroundings_.log(
      fmt::format("job {} starts on {}, attempt {}", job, counted(std::ssize(nodes), "node"), gang.attempt));
}

// Where the processes are, when all have been started: a line per node.
void Scheduler::show(std::int64_t job, const Gang& gang) {
  std::string lines;
  int nodes = 0;
  for (std::size_t i = 0; i < gang.ranks.size(); ++i) {
    const Rank& rank = gang.ranks[i];
    if (i == 0 || rank.node != gang.ranks[i - 1].node) {
      ++nodes;
      lines += fmt::format("\ncluster: job {}: node {} ({}) has rank {} and up, pids", job, rank.node, rank.host, i);
    }
    lines += fmt::format(" {}", rank.pid);
  }
  say(job, fmt::format(": {} on {}{}", counted(gang.job.workers, "worker"), counted(nodes, "node"), lines));
}

void Scheduler::fail(std::int64_t job, Gang& gang, int status, const std::string& what, bool again) {
  if (gang.state != State::running) return;
  ++gang.failures;
  surroundings_.log(fmt::format("job {} failed: {}", job, what));
  if (again && (gang.job.max_failures < 0 || gang.failures <= gang.job.max_failures))
    say(job, " failed and will start again: " + what);
  else
    gang.outcome = {status, what};
  stop(job, gang);
}

void Scheduler::stop(std::int64_t job, Gang& gang) {
  gang.state = State::stopping;
  gang.stop_by = surroundings_.now() + to_stop;
  std::map<std::int64_t, json> nodes;
  for (const Rank& rank : gang.ranks)
    if (!rank.ended) nodes[rank.node] = {{"stop", job}, {"attempt", gang.attempt}};
  for (const auto& [node, message] : nodes) surroundings_.to_node(node, message);
}

void Scheduler::after_last_exit(Gangs::iterator found) {
  auto& [job, gang] = *found;
  if (gang.left > 0) return;
  if (gang.state == State::running) gang.outcome = {0, ""};
  if (gang.outcome) return finish(found);
  if (gang.state == State::waiting) return;
  gang.state = State::waiting;
  gang.give_up = std::max(gang.earliest, surroundings_.now()) + std::chrono::milliseconds(gang.job.timeout_ms);
  ++gang.attempt;  // what still comes from the ranks of this one is ignored
  gang.ranks.clear();
  gang.store = {};
}

void Scheduler::finish(Gangs::iterator found) {
  const auto& [job, gang] = *found;
  const auto& [status, what] = *gang.outcome;
  const std::string verdict = status == 0                         ? "has ended"
                              : status == stopped && what.empty() ? "was stopped"
                                                                  : fmt::format("failed with status {}", status);
  const std::string failures = gang.failures > 0 ? " after " + counted(gang.failures, "failure") : "";
  surroundings_.log(fmt::format("job {} ended with status {}", job, status));
  surroundings_.to_client(
      job, {{"end", status},
            {"say", fmt::format("cluster: job {} {}{}{}", job, verdict, failures, what.empty() ? "" : ": " + what)}});
  gangs_.erase(found);
}

void Scheduler::say(std::int64_t job, const std::string& what) {
  surroundings_.to_client(job, {{"say", fmt::format("cluster: job {}{}", job, what)}});
}

}  // namespace cluster
