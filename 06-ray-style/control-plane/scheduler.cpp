#include "scheduler.hpp"

#include "placement.hpp"

#include <multinode/world/report.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <sstream>
#include <utility>

namespace cluster {

namespace {

std::string ending(int status) {
  if (status <= 128) return fmt::format("ended with status {}", status);
  const char* name = sigabbrev_np(status - 128);
  return fmt::format("was killed by signal {}", status - 128) + (name ? fmt::format(" (SIG{})", name) : "");
}

// "1 CPU", "2 CPUs"
std::string counted(std::int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

void Scheduler::join(std::int64_t id, const json& hello) {
  const Node node{hello.at("host"), hello.at("pid"), hello.at("cpus"), hello.at("cpus")};
  surroundings_.log(fmt::format("node {} ({}, pid {}) joined with {} CPUs", id, node.host, node.pid, node.cpus));
  nodes_.emplace(id, node);
  surroundings_.to_node(id, left_.empty() ? json{{"welcome", id}} : json{{"leave", left_}});
  schedule();
}

void Scheduler::on_process_end(std::int64_t node, const json& message) {
  const auto found = gangs_.find(message.at("job"));
  if (found == gangs_.end() || message.at("attempt") != found->second.attempt) return;
  auto& [job, gang] = *found;
  const auto number = message.at("rank").get<std::size_t>();
  if (number >= gang.ranks.size()) return;
  Rank& rank = gang.ranks[number];
  if (rank.node != node || std::exchange(rank.ended, true)) return;
  ++nodes_.at(node).free;
  if (const int status = message.at("status"); status != 0)
    fail(job, gang, status,
         fmt::format("rank {} ({}) {}{}", number, rank.host, ending(status),
                     status == 128 + SIGKILL ? message.value("memory", "") : ""));
  schedule();
}

void Scheduler::lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  const auto& [host, pid, cpus, free] = found->second;
  const std::string what = fmt::format("node {} ({}, pid {}) is gone: {}", node, host, pid, why);
  surroundings_.log(what);
  nodes_.erase(found);
  for (auto& [job, gang] : gangs_) {
    bool lost = false;
    for (Rank& rank : gang.ranks)
      if (rank.node == node && !std::exchange(rank.ended, true)) lost = true;
    if (!lost) continue;
    gang.earliest = std::max(gang.earliest, surroundings_.now() + lease);
    fail(job, gang, 1, what);
  }
  schedule();
}

void Scheduler::submit(std::int64_t job, const Job& what) {
  gangs_.insert_or_assign(job, Gang{what, surroundings_.now(), surroundings_.now() + patience});
  schedule();
}

void Scheduler::stop(std::int64_t job) {
  const auto found = gangs_.find(job);
  if (found == gangs_.end()) return;
  found->second.outcome = {1, "its client is gone"};
  stop(job, found->second);
  schedule();
}

void Scheduler::leave(const std::string& reason) {
  left_ = reason;
  surroundings_.log("the cluster ends: " + reason);
  for (const auto& [id, node] : nodes_) surroundings_.to_node(id, {{"leave", reason}});
  schedule();
}

std::string Scheduler::status() const {
  multinode::Table nodes({"node", "host", "pid", "CPUs used"});
  for (const auto& [id, node] : nodes_)
    nodes.add({std::to_string(id), node.host, std::to_string(node.pid),
               fmt::format("{}/{}", node.cpus - node.free, node.cpus)});
  multinode::Table jobs({"job", "program", "workers", "failures", "state"});
  for (const auto& [id, gang] : gangs_)
    jobs.add({std::to_string(id), gang.job.command.at(0), std::to_string(gang.job.workers),
              std::to_string(gang.failures), gang.ranks.empty() ? "waits for free places" : "running"});
  std::ostringstream text;
  nodes.print(text);
  if (gangs_.empty()) return text.str() + "no jobs\n";
  jobs.print(text);
  return text.str();
}

void Scheduler::schedule() {  // the oldest job first
  for (auto at = gangs_.begin(); at != gangs_.end();)
    at = advance(at->first, at->second) ? gangs_.erase(at) : std::next(at);
}

// Starts an attempt if all of it fits. Returns whether the job has ended.
bool Scheduler::advance(std::int64_t job, Gang& gang) {
  const auto now = surroundings_.now();
  if (left_.empty() && !std::ranges::all_of(gang.ranks, &Rank::ended)) return false;
  if (!left_.empty()) {
    gang.outcome = {1, "the cluster ended: " + left_};
  } else if (!gang.ranks.empty()) {
    if (!gang.stopping) gang.outcome = {0, ""};
    gang.give_up = std::max(gang.earliest, now) + patience;
    ++gang.attempt;  // what still comes from the ranks of this one is ignored
    gang.ranks.clear();
    gang.stopping = false;
  }
  if (!gang.outcome) {
    if (gang.earliest > now) return false;
    std::vector<int> free;
    int all = 0;
    for (const auto& [id, node] : nodes_) free.push_back(node.free), all += node.cpus;
    if (const auto counts = place(gang.job.workers, free); !counts.empty()) return start(job, gang, counts), false;
    const std::string why = fmt::format("{} want as many CPUs, {} of {} free", counted(gang.job.workers, "worker"),
                                        std::accumulate(free.begin(), free.end(), 0), all);
    if (!std::exchange(gang.said_waiting, true)) say(job, " waits: " + why);
    if (now < gang.give_up) return false;
    gang.outcome = {1, fmt::format("{}, for {} s", why, patience.count())};
  }
  const auto& [status, why] = *gang.outcome;
  const std::string text = fmt::format(
      "cluster: job {} {}{}{}", job, status == 0 ? "has ended" : fmt::format("failed with status {}", status),
      gang.failures > 0 ? " after " + counted(gang.failures, "failure") : "", why.empty() ? "" : ": " + why);
  surroundings_.to_client(job, {{"say", text}, {"end", status}});
  return true;
}

void Scheduler::start(std::int64_t job, Gang& gang, const std::vector<int>& counts) {
  const auto node_count = std::ranges::count_if(counts, [](int n) { return n > 0; });
  gang.earliest = surroundings_.now() + std::chrono::seconds(1);  // for the next one
  gang.said_waiting = false;
  surroundings_.to_client(job, {{"attempt", gang.attempt}});
  say(job, fmt::format(": {} on {}", counted(gang.job.workers, "worker"), counted(node_count, "node")));
  int node_rank = 0;
  auto count = counts.begin();
  for (auto& [id, node] : nodes_) {
    const int here = *count++;
    if (here == 0) continue;
    node.free -= here;
    json start = {{"start", gang.job.command},
                  {"job", job},
                  {"attempt", gang.attempt},
                  {"first_rank", gang.ranks.size()},
                  {"environment", gang.job.environment},
                  {"count", here}};
    start["environment"].update({{"WORLD_SIZE", gang.job.workers},
                                 {"LOCAL_WORLD_SIZE", here},
                                 {"GROUP_RANK", node_rank++},
                                 {"GROUP_WORLD_SIZE", node_count},
                                 {"CLUSTER_RESTART_COUNT", gang.attempt},
                                 {"CLUSTER_JOB_ID", job}});
    surroundings_.to_node(id, start);
    gang.ranks.insert(gang.ranks.end(), static_cast<std::size_t>(here), Rank{id, node.host});
  }
}

void Scheduler::fail(std::int64_t job, Gang& gang, int status, const std::string& what) {
  if (gang.stopping) return;
  ++gang.failures;
  if (gang.job.max_failures < 0 || gang.failures <= gang.job.max_failures)
    say(job, " failed and will start again: " + what);
  else
    gang.outcome = {status, what};
  stop(job, gang);
}

void Scheduler::stop(std::int64_t job, Gang& gang) {
  gang.stopping = true;
  std::map<std::int64_t, json> nodes;
  for (const Rank& rank : gang.ranks)
    if (!rank.ended) nodes[rank.node] = {{"stop", job}, {"attempt", gang.attempt}};
  for (const auto& [node, message] : nodes) surroundings_.to_node(node, message);
}

void Scheduler::say(std::int64_t job, const std::string& what) {
  surroundings_.to_client(job, {{"say", fmt::format("cluster: job {}{}", job, what)}});
}

}  // namespace cluster
