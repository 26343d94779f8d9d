#include "channel.hpp"
#include "engine.hpp"
#include "keeper.hpp"
#include "lease.hpp"

#include <multinode/launch.hpp>
#include <multinode/net/address.hpp>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

namespace cluster {

namespace {

using namespace std::chrono_literals;
using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kill_delay = 500ms;  // from SIGTERM to SIGKILL
constexpr auto connection = 5s;     // for the store to answer

// The environment of the process `local` of those that `start` names: this one's, less what would make the program
// believe another launcher.
std::vector<std::string> environment_of(const json& start, std::size_t local, const std::string& head) {
  multinode::Environment variables = multinode::without_process_variables(multinode::current_environment());
  variables.emplace("OMP_NUM_THREADS", "1");  // unless set: a process is given one CPU
  const std::pair<const char*, std::size_t> numbers[] = {
      {"RANK", start.at("first_rank").get<std::size_t>() + local},
      {"LOCAL_RANK", local},
      {"WORLD_SIZE", start.at("world_size")},
      {"LOCAL_WORLD_SIZE", start.at("count")},
      {"GROUP_RANK", start.at("node_rank")},
      {"GROUP_WORLD_SIZE", start.at("node_count")},
      {"CLUSTER_RESTART_COUNT", start.at("attempt")},
      {"CLUSTER_JOB_ID", start.at("job")},
  };
  for (const auto& [name, value] : numbers) variables[name] = std::to_string(value);
  variables["CLUSTER_STORE"] = multinode::with_token({{head, start.at("store_port")}, start.at("store_token")});

  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

class Node {
 public:
  Node(const NodeOptions& options, const multinode::Signals& signals)
      : options_(options),
        signals_(signals),
        number_(take_number(*connect(options.timeout), "node", options.timeout)),
        sending_(connect(connection)),
        receiving_(connect(connection)),
        to_head_(*sending_, fmt::format("node/{}/from", number_)) {
    leased_until_ = Clock::now() + lease;
    send({{"host", multinode::host_name()}, {"pid", getpid()}, {"cpus", options.cpus}});
    reader_ = std::jthread([this](const std::stop_token& stop) { read(stop); });
  }

  std::string run() try {
    for (;; wait()) {
      if (Clock::now() >= next_beat_) send({{"beat", true}});
      hear();
      for (Rank& rank : ranks_)
        if (!reason_.empty()) stop(rank);
      look_after_ranks();
      if (reason_.empty() || !ranks_.empty()) continue;
      send({{"leave", reason_}});
      return reason_;
    }
  } catch (const multinode::StoreLost& e) {
    give_up(e.what());
  } catch (const multinode::StoreTimeout& e) {
    give_up(e.what());
  }

 private:
  struct Rank {
    std::int64_t job = 0;
    int attempt = 0;
    std::size_t rank = 0;
    std::unique_ptr<Child> process{};
    std::string prefix{};  // of its lines
    bool stopped = false;
    std::optional<Clock::time_point> kill_at{};
    json with(const char* key, const json& value) const {
      return {{"job", job}, {"attempt", attempt}, {"rank", rank}, {key, value}};
    }
  };

  std::unique_ptr<multinode::TcpStore> connect(std::chrono::milliseconds timeout) const {
    return std::make_unique<multinode::TcpStore>(options_.head, timeout,
                                                 multinode::protocol::Hello{.token = options_.head.token});
  }
  // At once: the head may have started their successors.
  [[noreturn]] void give_up(const std::string& why) {
    if (!ranks_.empty()) options_.log(fmt::format("kills {} processes", ranks_.size()));
    ranks_.clear();
    throw std::runtime_error("the head at " + to_string(options_.head) + " is gone: " + why);
  }

  // Each message that the head's store acknowledges renews the lease, counted from the time when it was sent.
  void send(const json& message) {
    const auto sent = Clock::now();
    to_head_.send_with_will(message.dump());
    if (Clock::now() >= leased_until_)
      throw multinode::StoreLost("no message was acknowledged for " + multinode::to_text(lease));
    leased_until_ = sent + lease;
    next_beat_ = sent + heartbeat;
    for (const Rank& rank : ranks_) rank.process->allow_until(leased_until_);
  }

  void read(const std::stop_token& stop) {
    Receiver in(*receiving_, fmt::format("node/{}/to", number_), true);
    while (!stop.stop_requested()) {
      std::string lost;
      std::optional<std::string> message;
      try {
        message = in.receive(200ms);
      } catch (const std::exception& e) {
        lost = e.what();
      }
      const std::lock_guard lock(mutex_);
      if (message) inbox_.push_back(std::move(*message));
      lost_ = lost;
      if (message || !lost.empty()) eventfd_write(wake_.get(), 1);
      if (!lost.empty()) return;
    }
  }

  // Takes what the head and the signals want.
  void hear() {
    eventfd_t count = 0;
    eventfd_read(wake_.get(), &count);
    while (const auto signal = signals_.next()) {
      const std::string name = strsignal(static_cast<int>(signal->ssi_signo));
      leave("stopped (" + name + ")");
    }
    std::deque<std::string> inbox;
    {
      const std::lock_guard lock(mutex_);
      inbox.swap(inbox_);
      if (inbox.empty() && !lost_.empty()) throw multinode::StoreLost(lost_);
    }
    for (const std::string& text : inbox) {
      const json message = json::parse(text);
      if (message.contains("welcome"))
        options_.log(fmt::format("joined the head at {} as node {} with {} CPUs", to_string(options_.head), number_,
                                 options_.cpus));
      if (message.contains("start") && reason_.empty()) start(message["start"]);
      if (message.contains("stop"))
        for (Rank& rank : ranks_)
          if (rank.job == message["stop"] && rank.attempt == message.at("attempt")) stop(rank);
      if (message.contains("leave")) leave(message["leave"]);
    }
  }

  void leave(const std::string& reason) {
    if (!reason_.empty()) return;
    reason_ = reason;
    if (!ranks_.empty()) options_.log(fmt::format("stops {} processes: {}", ranks_.size(), reason));
  }

  void start(const json& start) {
    const std::vector<std::string> command = start.at("command");
    options_.log(fmt::format("job {}, attempt {}: starts {} of {}", start.at("job").dump(), start.at("attempt").dump(),
                             start.at("count").dump(), command.at(0)));
    for (std::size_t local = 0; local < start.at("count"); ++local) {
      Rank rank{start.at("job"), start.at("attempt"), start.at("first_rank").get<std::size_t>() + local};
      try {
        rank.process = std::make_unique<Child>(command, start.at("folder"),
                                               environment_of(start, local, options_.head.host), leased_until_);
        const json started = rank.with("pid", rank.process->pid());
        rank.prefix = fmt::format("(worker {}, {}, {}) ", rank.rank, multinode::host_name(), rank.process->pid());
        ranks_.push_back(std::move(rank));
        send(started);
      } catch (const multinode::StartError& e) {
        json ended = rank.with("status", e.status);
        ended["error"] = e.what();
        send(ended);
      }
    }
  }

  static void stop(Rank& rank) {
    if (std::exchange(rank.stopped, true)) return;
    rank.process->terminate();
    rank.kill_at = Clock::now() + kill_delay;
  }

  // Of the client; while that does not read, the processes' output stays in their pipes.
  Sender& output_of(const Rank& rank) {
    return outputs_.try_emplace(rank.job, *sending_, fmt::format("job/{}/{}", rank.job, number_)).first->second;
  }

  void look_after_ranks() {
    full_ = false;
    std::erase_if(ranks_, [this](Rank& rank) {
      Child& process = *rank.process;
      const std::optional<int> status = process.status();
      if (!status && rank.kill_at && Clock::now() >= *rank.kill_at) {
        process.kill();
        rank.kill_at.reset();
      }
      if (process.output() >= 0) {
        const bool full = output_of(rank).full();
        if (full && !rank.stopped) return full_ = true, false;
        std::istringstream lines(process.read());
        std::string text;
        for (std::string line; std::getline(lines, line);) text += rank.prefix + line + "\n";
        if (!text.empty() && !full) output_of(rank).send(text);
      }
      if (!status || process.output() >= 0) return false;
      const json ended = rank.with("status", *status);
      send(ended);
      return true;
    });
  }

  void wait() {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}, {signals_.descriptor(), POLLIN, 0}};
    Clock::time_point until = std::min(next_beat_, leased_until_);
    if (full_) until = std::min(until, Clock::now() + 20ms);
    for (const Rank& rank : ranks_) {
      if (rank.kill_at) until = std::min(until, *rank.kill_at);
      if (!full_ && rank.process->output() >= 0) entries.push_back({rank.process->output(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    poll(entries.data(), entries.size(), static_cast<int>(std::max(left, 0ms).count()));
  }

  const NodeOptions& options_;
  const multinode::Signals& signals_;
  const std::int64_t number_;
  const std::unique_ptr<multinode::TcpStore> sending_, receiving_;
  const multinode::Descriptor wake_{multinode::check_errno(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")};
  Sender to_head_;
  Clock::time_point leased_until_, next_beat_;
  std::vector<Rank> ranks_;  // until the head knows their end
  std::map<std::int64_t, Sender> outputs_;
  std::string reason_;  // why the node leaves
  bool full_ = false;   // a client does not read
  std::mutex mutex_;    // of the following
  std::deque<std::string> inbox_;
  std::string lost_;
  std::jthread reader_;
};

}  // namespace

std::string run_node(const NodeOptions& options, const multinode::Signals& signals) {
  return Node(options, signals).run();
}

}  // namespace cluster
