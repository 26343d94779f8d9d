#include "supervisor.hpp"

#include "member.hpp"

#include <multinode/base/descriptor.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/process/child_process.hpp>

#include <fmt/core.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>

namespace live {
namespace {

using Clock = std::chrono::steady_clock;

class Supervisor {
 public:
  explicit Supervisor(const Supervision& how)
      : how_(how),
        token_(multinode::random_token()),
        server_("127.0.0.1", 0, {.token = token_}),
        store_({"127.0.0.1", server_.port()}, how.timeout, {.token = token_}),
        signals_{SIGCHLD, SIGINT, SIGTERM},
        ranks_(static_cast<std::size_t>(how.ranks)) {}

  std::string run() {
    for (int r = 0; r < how_.ranks; ++r) start(r);
    while (!all_ended()) {
      pollfd woken{signals_.descriptor(), POLLIN, 0};
      poll(&woken, 1, static_cast<int>(std::clamp<long>(how_.timeout.count() / 10, 10, 500)));
      while (const auto signal = signals_.next())
        if (signal->ssi_signo != SIGCHLD) throw std::runtime_error("stopped by a signal");
      for (int r = 0; r < how_.ranks; ++r)
        if (of(r)->look()) ended(r);
      kill_the_late();
    }
    const std::string result = look(store_, "finished");
    if (result.empty()) throw std::runtime_error("the ranks ended without a result");
    return result;
  }

 private:
  std::unique_ptr<multinode::ChildProcess>& of(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  bool all_ended() const {
    return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->ending().has_value(); });
  }

  void start(int r) {
    const multinode::Pipe pipe = multinode::make_pipe();
    const std::string line = fmt::format("{} {} {} {}\n", r, how_.ranks, server_.port(), token_);
    multinode::ChildCommand command{.arguments = how_.arguments, .file = "/proc/self/exe"};
    command.descriptors = {pipe.from.get(), 1, 2};
    command.when_parent_dies = SIGKILL;
    command.mask = signals_.before();
    of(r) = std::make_unique<multinode::ChildProcess>(command);
    if (::write(pipe.to.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("cannot tell a rank who it is");
  }

  // The first generation that is not over.
  std::uint64_t open_generation() {
    while (look(store_, verdict_key(generation_)) == "over") ++generation_;
    return generation_;
  }

  void ended(int r) {
    const multinode::Ending ending = *of(r)->ending();
    if (!ending.failed() || !look(store_, "finished").empty()) return;
    if (!ending.signal)
      throw std::runtime_error(
          fmt::format("rank {} ended with exit status {}: a new one would do the same", r, ending.status));
    const std::string what = fmt::format("rank {} (pid {}) was killed by signal {} ({})", r, of(r)->pid(),
                                         ending.signal, strsignal(ending.signal));
    if (++restarts_ > how_.restarts)
      throw std::runtime_error(fmt::format("{}, after {} restarts; --restarts allows no more", what, how_.restarts));
    std::cerr << fmt::format("{}: {}; restart {} of {}\n", how_.program, what, restarts_, how_.restarts) << std::flush;
    store_.set(verdict_key(open_generation()), "over");
    start(r);
  }

  // A rank that the others wait for at a start is killed after the deadline, and replaced. Inside a generation the
  // others notice by themselves that a rank does not answer, and begin the next one, in which it does not arrive. If
  // all of them hang, no step is completed for twice that time.
  void kill_the_late() {
    const std::uint64_t generation = open_generation();
    const bool begun = look(store_, verdict_key(generation)) == "go";
    const std::string now = fmt::format("{} {} {}", generation, begun, look(store_, "steps"));
    if (now != seen_) {
      seen_ = now;
      since_ = Clock::now();
    }
    if (Clock::now() - since_ < (begun ? 2 : 1) * how_.timeout || !look(store_, "finished").empty()) return;
    since_ = Clock::now();
    for (int r = 0; r < how_.ranks; ++r)
      if (begun || look(store_, address_key(generation, r)).empty()) {
        std::cerr << fmt::format("{}: rank {} (pid {}) did not answer within the deadline and is killed\n",
                                 how_.program, r, of(r)->pid())
                  << std::flush;
        of(r)->signal(SIGKILL);
      }
  }

  const Supervision& how_;
  std::string token_;
  multinode::TcpStoreServer server_;
  multinode::TcpStore store_;
  multinode::Signals signals_;
  std::vector<std::unique_ptr<multinode::ChildProcess>> ranks_;
  int restarts_ = 0;
  std::uint64_t generation_ = 0;
  std::string seen_;  // the generation and its progress, and since when
  Clock::time_point since_ = Clock::now();
};

}  // namespace

std::string supervise(const Supervision& how) { return Supervisor(how).run(); }

}  // namespace live
