#include "channel.hpp"
#include "head_node_keeper.hpp"
#include "lease.hpp"

#include <multinode/base/json.hpp>
#include <multinode/launch.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/process/child_process.hpp>

#include <list>

namespace cluster {

using namespace std::chrono_literals;
using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

// The environment of the process `local` of those that `start` names: this one's, less what would make the program
// believe another launcher.
std::vector<std::string> environment_of(const json& start, std::size_t local) {
  multinode::Environment variables = multinode::environment_of_process(multinode::current_environment(), true);
  for (const auto& [name, value] : start.at("environment").items())
    variables[name] = value.is_string() ? value.get<std::string>() : multinode::json_text(value);
  variables["RANK"] = std::to_string(start.at("first_rank").get<std::size_t>() + local);
  variables["LOCAL_RANK"] = std::to_string(local);
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<std::string> arguments_of(const json& start) {
  std::vector<std::string> arguments = start.at("start");
  arguments.insert(arguments.begin(), {"cluster", "keep"});
  return arguments;
}

// A process of a job, under its keeper.
struct Rank {
  Rank(const json& start, std::size_t local, Clock::time_point until, multinode::Pipe pipe = multinode::make_pipe())
      : job(start.at("job")),
        attempt(start.at("attempt")),
        number(start.at("first_rank").get<std::size_t>() + local),
        keeper({.arguments = arguments_of(start),
                .file = "/proc/self/exe",
                .environment = environment_of(start, local),
                .descriptors = {pipe.from.get(), 1, 2},
                .own_group = true,  // a terminal's Ctrl-C is for the node
                .default_signals = true,
                .only_these = true}),
        times(std::move(pipe.to)) {
    multinode::check_errno(fcntl(times.get(), F_SETFL, O_NONBLOCK), "fcntl");
    allow_until(until);
  }
  ~Rank() {
    times.reset();
    keeper.wait();  // ~ChildProcess would kill the keeper before that has killed the others
  }
  void allow_until(Clock::time_point time) const {
    const std::int64_t count = std::chrono::nanoseconds(time.time_since_epoch()).count();
    (void)!write(times.get(), &count, sizeof count);  // the keeper may have ended, or be frozen
  }

  const std::int64_t job;
  const int attempt;
  const std::size_t number;
  const multinode::OomWatch memory;
  multinode::ChildProcess keeper;
  multinode::Descriptor times;  // for the keeper
};

class Node {
 public:
  explicit Node(const multinode::StorePlace& head)
      : store_(head, 5s, {.token = head.token}),
        name_("node/" + std::to_string(store_.add("node", 1))),
        to_head_(store_, name_ + "/from"),
        from_head_(store_, name_ + "/to") {}

  std::string run(int cpus, const multinode::Signals& signals) {
    for (send({{"host", multinode::host_name()}, {"pid", getpid()}, {"cpus", cpus}});;) {
      if (Clock::now() >= next_beat_) send({{"beat", true}});
      if (signals.next()) return "a signal came";
      ranks_.remove_if([this](Rank& rank) {
        if (!rank.keeper.poll()) return false;
        send({{"job", rank.job},
              {"attempt", rank.attempt},
              {"rank", rank.number},
              {"status", rank.keeper.ending()->as_exit_status()},
              {"memory", rank.memory.reason(multinode::OomWatch::see_dmesg)}});
        return true;
      });
      const auto text = from_head_.receive(turn);
      const json message = text ? multinode::from_msgpack(*text) : json::object();
      if (message.contains("welcome")) log("joined the head as " + name_);
      if (message.contains("start"))
        for (std::size_t local = 0; local < message.at("count"); ++local)
          ranks_.emplace_back(message, local, leased_until_);
      if (message.contains("stop"))
        for (const Rank& rank : ranks_)
          if (rank.job == message["stop"] && rank.attempt == message.at("attempt")) rank.keeper.signal(SIGTERM);
      if (message.contains("leave")) return message["leave"];
    }
  }

 private:
  // Each message that the head's store acknowledges renews the lease, counted from the time when it was sent.
  void send(const json& message) {
    const auto sent = Clock::now();
    to_head_.send_with_will(multinode::to_msgpack(message));
    if (Clock::now() >= leased_until_)
      throw multinode::StoreLost("it acknowledged no message for " + multinode::to_text(lease));
    leased_until_ = sent + lease;
    next_beat_ = sent + heartbeat;
    for (const Rank& rank : ranks_) rank.allow_until(leased_until_);
  }

  multinode::TcpStore store_;
  const std::string name_;
  Sender to_head_;
  Receiver from_head_;
  Clock::time_point leased_until_ = Clock::now() + lease, next_beat_{};
  std::list<Rank> ranks_;  // until the head knows their end
};

}  // namespace

void run_node(const multinode::StorePlace& head, int cpus, const multinode::Signals& signals) {
  std::signal(SIGPIPE, SIG_IGN);
  log("left: " + Node(head).run(cpus, signals));
}

}  // namespace cluster
