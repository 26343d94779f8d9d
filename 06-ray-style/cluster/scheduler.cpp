#include "cluster/scheduler.hpp"

#include "cluster/token.hpp"

#include <multinode/check.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace cluster {

namespace {

constexpr int cancelled = 130;  // as a shell has it for Ctrl-C
constexpr std::size_t longest_path = 4096;

bool printable(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ') || c == 127; });
}

std::string ending(int status) {
  if (status <= 128) return "ended with status " + std::to_string(status);
  const char* name = sigabbrev_np(status - 128);
  return "was killed by signal " + std::to_string(status - 128) + (name ? " (SIG" + std::string(name) + ")" : "");
}

// The path under "checkpoint" in a JSON object; "" where there is none.
std::string checkpoint_in(const std::string& report) {
  const auto json = nlohmann::json::parse(report, nullptr, false);
  if (!json.is_object()) return "";
  const auto found = json.find("checkpoint");
  if (found == json.end() || !found->is_string()) return "";
  const auto& path = found->get_ref<const std::string&>();
  return path.size() < longest_path && path.find('\0') == std::string::npos ? path : "";
}

Slots each_of(const Job& job) { return {job.cpus_per_worker(), job.gpus_per_worker()}; }

Result make_result(int status, const std::string& what) {
  Result result;
  result.set_status(status);
  result.set_what(what);
  return result;
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
  in_range("the CPUs of a worker", job.cpus_per_worker(), 1, 1 << 16);
  in_range("the GPUs of a worker", job.gpus_per_worker(), 0, 1 << 10);
  in_range("the number of failures", job.max_failures(), -1, 1'000'000);
  require(Placement_IsValid(job.placement()), "the placement of a job is PACK or SPREAD");
}

std::int64_t Scheduler::join(const Hello& hello, NodeLink link) {
  if (!left_.empty()) throw std::runtime_error("the cluster ends: " + left_);
  if (hello.version() != "1") throw std::runtime_error("the head speaks version 1, not '" + hello.version() + "'");
  if (nodes_.size() >= most_nodes) throw std::runtime_error("the cluster has " + std::to_string(most_nodes) + " nodes");
  if (hello.cpus() < 0 || hello.cpus() > 1 << 16 || hello.gpus() < 0 || hello.gpus() > 1 << 10 ||
      hello.host().empty() || hello.host().size() > 255 || !printable(hello.host()))
    throw std::runtime_error("no node has such a name, or so many CPUs or GPUs");
  const std::int64_t id = next_node_++;
  Node& node = nodes_[id];
  node.hello = hello;
  node.link = std::move(link);
  node.gpus_used.resize(static_cast<std::size_t>(hello.gpus()));
  ToNode message;
  message.mutable_welcome()->set_node(id);
  node.link.send(message);
  surroundings_.log("node " + std::to_string(id) + " (" + name(id) + ") joined with " + counted(hello.cpus(), "CPU") +
                    " and " + counted(hello.gpus(), "GPU"));
  schedule();
  return id;
}

void Scheduler::hear(std::int64_t node, const FromNode& message) {
  const Which& which = message.has_started()  ? message.started().which()
                       : message.has_ended()  ? message.ended().which()
                       : message.has_output() ? message.output().which()
                                              : message.report().which();
  const auto found = gangs_.find(which.job());
  if (found == gangs_.end()) return;
  auto& [job, gang] = *found;
  const auto rank = static_cast<std::size_t>(which.rank());
  if (which.attempt() != gang.attempt || which.rank() < 0 || rank >= gang.members.size()) return;
  Member& member = gang.members[rank];
  if (member.node != node || member.ended) return;

  const auto forward = [&, &gang = gang](ToClient to_client, std::int64_t lines) {
    if (to_client.has_output()) to_client.mutable_output()->set_lost(gang.lost);
    const bool has_output = to_client.has_output();
    if (!gang.client.send_output(std::move(to_client)))
      gang.lost += lines;
    else if (has_output)
      gang.lost = 0;
  };
  if (message.has_started()) {
    member.pid = message.started().pid();
    show(gang);
  } else if (message.has_output()) {
    ToClient to_client;
    *to_client.mutable_output() = message.output();
    Process& process = *to_client.mutable_output()->mutable_process();
    process.set_rank(which.rank());
    process.set_node(node);
    process.set_host(member.host);
    process.set_pid(member.pid);
    const std::string& text = message.output().text();
    forward(std::move(to_client), std::count(text.begin(), text.end(), '\n'));
  } else if (message.has_report()) {
    const std::string& json = message.report().json();
    if (std::string path = checkpoint_in(json); !path.empty()) gang.checkpoint = std::move(path);
    if (rank == 0) gang.last_report = json;
    ToClient to_client;
    *to_client.mutable_report() = message.report();
    forward(std::move(to_client), 1);
  } else if (message.has_ended()) {
    const Ended& ended = message.ended();
    const std::string who = name(gang, which.rank());
    end(job, member);
    show(gang);
    if (!ended.error().empty())  // it will not start the next time either
      fail(job, ended.status() != 0 ? ended.status() : 1, who + ": " + ended.error(), false);
    else if (ended.status() != 0)
      fail(job, ended.status(), who + " " + ending(ended.status()));
    settle(job);
    schedule();
  }
}

void Scheduler::lose(std::int64_t node, const std::string& why) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  const std::string what = "node " + std::to_string(node) + " (" + name(node) + ") is gone: " + why;
  surroundings_.log(what);
  nodes_.erase(found);
  std::vector<std::int64_t> hurt;
  for (auto& [job, gang] : gangs_) {
    bool was_on_it = false;
    for (Member& member : gang.members)
      if (member.node == node && !member.ended) was_on_it = member.ended = true;
    if (was_on_it) hurt.push_back(job);
  }
  for (const std::int64_t job : hurt) {
    fail(job, 1, what);
    settle(job);
  }
  schedule();
}

std::int64_t Scheduler::submit(const Job& job, ClientLink link) {
  check_job(job);
  if (!left_.empty()) throw std::runtime_error("the cluster ends: " + left_);
  if (gangs_.size() >= most_jobs) throw std::runtime_error("the cluster has " + std::to_string(most_jobs) + " jobs");
  const std::int64_t id = next_job_++;
  Gang& gang = gangs_[id];
  gang.job = job;
  gang.client = std::move(link);
  gang.secret = make_token();
  ToClient message;
  message.mutable_accepted()->set_job(id);
  message.mutable_accepted()->set_secret(gang.secret);
  gang.client.send(message);
  surroundings_.log("job " + std::to_string(id) + ": " + job.program() + ", " + counted(job.num_workers(), "worker"));
  schedule();
  return id;
}

void Scheduler::cancel(std::int64_t job) {
  const auto found = gangs_.find(job);
  if (found == gangs_.end()) return;
  Gang& gang = found->second;
  if (!gang.outcome) gang.outcome = make_result(cancelled, "cancelled");
  if (gang.state == State::running) stop(job, gang);
  settle(job);
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
      for (const Member& member : gang.members)
        if (!member.ended) nodes_.at(member.node).link.drop();
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
    gangs_.begin()->second.outcome = make_result(1, "the cluster ended: " + reason);
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
    one.set_cpus_used(node.cpus_used);
    one.set_gpus(node.hello.gpus());
    one.set_gpus_used(static_cast<int>(std::count(node.gpus_used.begin(), node.gpus_used.end(), true)));
  }
  for (const auto& [id, gang] : gangs_) {
    JobStatus& one = *status.add_jobs();
    one.set_job(id);
    one.set_program(gang.job.program());
    one.set_num_workers(gang.job.num_workers());
    one.set_failures(gang.failures);
    if (gang.state == State::stopping)
      one.set_waiting("its processes are ending");
    else
      one.set_waiting(gang.waiting);
  }
  return status;
}

void Scheduler::schedule() {
  std::vector<Slots> free, all;
  for (const auto& [id, node] : nodes_) {
    all.push_back({node.hello.cpus(), node.hello.gpus()});
    free.push_back({node.hello.cpus() - node.cpus_used,
                    static_cast<int>(std::count(node.gpus_used.begin(), node.gpus_used.end(), false))});
  }
  // What does not fit now, so that a thousand jobs that need the same are not each tried on a thousand nodes.
  using Need = std::tuple<int, int, int, Placement>;  // workers, the CPUs and GPUs of each
  struct Refusal {
    bool larger_than_cluster;
    std::string why;
  };
  std::map<Need, Refusal> refused;
  std::int64_t first = 0;  // of those that wait for others to end
  for (auto gang = gangs_.begin(); gang != gangs_.end();) {
    const auto here = gang++;  // it may be finished by its start
    auto& [job, it] = *here;
    if (it.state != State::waiting) continue;
    const Slots each = each_of(it.job);
    if (first != 0) {
      wait(it, "job " + std::to_string(first) + " is before it");
    } else if (it.earliest > surroundings_.now()) {
      first = job;
      wait(it, "its last attempt failed within a second");
    } else {
      const int workers = it.job.num_workers();
      const Need need{workers, each.cpus, each.gpus, it.job.placement()};
      auto known = refused.find(need);
      if (known == refused.end()) {
        if (const auto counts = place(free, workers, each, it.job.placement()); !counts.empty()) {
          for (std::size_t node = 0; node < counts.size(); ++node) {
            free[node].cpus -= counts[node] * each.cpus;
            free[node].gpus -= counts[node] * each.gpus;
          }
          refused.clear();
          start(job, it, counts);
          continue;
        }
        const bool larger_than_cluster = place(all, workers, each, it.job.placement()).empty();
        known = refused.emplace(need, Refusal{larger_than_cluster, why_not(free, all, workers, each)}).first;
      }
      if (!known->second.larger_than_cluster) first = job;
      wait(it, known->second.why);
    }
  }
}

void Scheduler::start(std::int64_t job, Gang& gang, const std::vector<int>& counts) {
  try {
    gang.store = surroundings_.make_store();
  } catch (const std::exception& e) {
    gang.outcome = make_result(1, std::string("the head cannot serve the store of the job: ") + e.what());
    return settle(job);
  }
  gang.state = State::running;
  gang.waiting.clear();
  gang.earliest = surroundings_.now() + between_attempts;  // for the next one
  ToNode message;
  Start& start = *message.mutable_start();
  start.set_job(job);
  start.set_attempt(gang.attempt);
  start.set_program(gang.job.program());
  *start.mutable_arguments() = gang.job.arguments();
  start.set_world_size(gang.job.num_workers());
  start.set_node_count(static_cast<int>(std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; })));
  start.set_store_port(gang.store.port);
  start.set_checkpoint(gang.checkpoint);
  start.set_secret(gang.secret);
  auto count = counts.begin();
  for (auto& [id, node] : nodes_) {
    start.set_count(*count++);
    if (start.count() == 0) continue;
    start.clear_gpus();
    node.cpus_used += start.count() * gang.job.cpus_per_worker();
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

// Tells the client, once, where the processes are, when all have been started.
void Scheduler::show(Gang& gang) {
  if (gang.shown || gang.state != State::running ||
      std::any_of(gang.members.begin(), gang.members.end(), [](const Member& m) { return m.pid == 0; }))
    return;
  gang.shown = true;
  ToClient message;
  message.mutable_running()->set_attempt(gang.attempt);
  int rank = 0;
  for (const Member& member : gang.members) {
    Process& process = *message.mutable_running()->add_processes();
    process.set_rank(rank++);
    process.set_node(member.node);
    process.set_host(member.host);
    process.set_pid(member.pid);
  }
  gang.client.send(message);
}

void Scheduler::end(std::int64_t job, Member& member) {
  member.ended = true;
  Node& node = nodes_.at(member.node);
  node.cpus_used -= gangs_.at(job).job.cpus_per_worker();
  for (const int gpu : member.gpus) node.gpus_used[static_cast<std::size_t>(gpu)] = false;
}

void Scheduler::fail(std::int64_t job, int status, const std::string& what, bool again) {
  Gang& gang = gangs_.at(job);
  if (gang.state != State::running) return;
  ++gang.failures;
  surroundings_.log("job " + std::to_string(job) + " failed: " + what);
  if (!again || (gang.job.max_failures() >= 0 && gang.failures > gang.job.max_failures())) {
    gang.outcome = make_result(status, what);
  } else {
    ToClient message;
    message.mutable_failure()->set_attempt(gang.attempt);
    message.mutable_failure()->set_what(what);
    gang.client.send(message);
  }
  stop(job, gang);
}

void Scheduler::stop(std::int64_t job, Gang& gang) {
  gang.state = State::stopping;
  gang.stop_by = surroundings_.now() + to_stop;
  ToNode message;
  message.mutable_stop()->set_job(job);
  message.mutable_stop()->set_attempt(gang.attempt);
  std::set<std::int64_t> nodes;
  for (const Member& member : gang.members)
    if (!member.ended && nodes.insert(member.node).second) nodes_.at(member.node).link.send(message);
}

// What follows when no process of the gang is left.
void Scheduler::settle(std::int64_t job) {
  const auto found = gangs_.find(job);
  Gang& gang = found->second;
  if (!std::all_of(gang.members.begin(), gang.members.end(), [](const Member& member) { return member.ended; })) return;
  if (gang.state == State::running) gang.outcome = make_result(0, "");
  if (gang.outcome) return finish(found);
  gang.state = State::waiting;
  ++gang.attempt;
  gang.members.clear();
  gang.shown = false;
  gang.store = {};
}

void Scheduler::finish(Gangs::iterator gang) {
  auto& [job, it] = *gang;
  if (it.lost > 0) {
    ToClient message;
    message.mutable_output()->set_lost(it.lost);
    it.client.send(message);
  }
  it.outcome->set_failures(it.failures);
  it.outcome->set_last_report(it.last_report);
  it.outcome->set_checkpoint(it.checkpoint);
  surroundings_.log("job " + std::to_string(job) + " ended with status " + std::to_string(it.outcome->status()));
  ToClient message;
  *message.mutable_result() = *it.outcome;
  const ClientLink client = std::move(it.client);
  gangs_.erase(gang);
  client.send(message);
  client.ended();
}

void Scheduler::wait(Gang& gang, const std::string& why) {
  if (gang.waiting == why) return;
  gang.waiting = why;
  ToClient message;
  message.mutable_waiting()->set_reason(why);
  gang.client.send(message);
}

std::string Scheduler::name(std::int64_t node) const {
  const Hello& hello = nodes_.at(node).hello;
  return hello.host() + ", pid " + std::to_string(hello.pid());
}

std::string Scheduler::name(const Gang& gang, int rank) const {
  const Member& member = gang.members[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " (" + member.host +
         (member.pid != 0 ? ", pid " + std::to_string(member.pid) : "") + ")";
}

}  // namespace cluster
