#include "channel.hpp"
#include "head_node_keeper.hpp"

#include <multinode/launch.hpp>
#include <multinode/net/address.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/process/process_tree.hpp>

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <sstream>
#include <thread>

namespace cluster {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// Sends what comes out of `pipe` to `cluster run`, in whose store the ranks meet. The next lines wait until that has
// printed these, in the end in the pipe: a client that does not read blocks its own program, and nothing else.
void send_output(const multinode::Descriptor& pipe, pid_t pid) {
  const multinode::Environment environment = multinode::current_environment();
  const auto place = multinode::parse_store_place(environment.at("CLUSTER_STORE"), "CLUSTER_STORE");
  const std::string& rank = environment.at("RANK");
  // A client that is suspended (Ctrl-Z) is waited for. TCP notices one whose host is gone.
  std::optional<multinode::TcpStore> store;
  while (!store) try {
      store.emplace(place, std::chrono::hours(24 * 365), multinode::protocol::Hello{.token = place.token}, 10s);
    } catch (const multinode::StoreTimeout& late) {
      if (!std::string_view(late.what()).ends_with("it accepts the connection but does not answer")) throw;
    }
  Sender out(*store, fmt::format("output/{}/{}", environment.at("CLUSTER_RESTART_COUNT"), rank));
  const std::string prefix = fmt::format("(worker {}, {}, {}) ", rank, multinode::host_name(), pid);
  std::string begun;  // a line without its end
  std::array<char, 8 << 10> bytes;
  for (ssize_t count = 1; count > 0;) {
    count = read(pipe.get(), bytes.data(), bytes.size());
    begun.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    const bool all = count <= 0 || begun.size() > 65536;  // a longer line comes in pieces
    const std::size_t end = all ? begun.size() : begun.rfind('\n') + 1;
    std::istringstream lines(begun.substr(0, end));
    begun.erase(0, end);
    std::string text;
    for (std::string line; std::getline(lines, line);) text += prefix + line + "\n";
    if (!text.empty()) out.send_and_wait(text);
  }
}

}  // namespace

int keep(int argc, const char* const* argv) {
  if (argc < 2) throw multinode::UsageError("'cluster keep' is for 'cluster start'; use that one");
  multinode::adopt_orphans();
  const multinode::Signals signals{SIGTERM, SIGCHLD};
  auto [from, to] = multinode::make_pipe();
  std::optional<multinode::ChildProcess> program;
  std::optional<int> status;
  try {
    std::filesystem::current_path(multinode::current_environment().at("PWD"));
    const multinode::Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    program.emplace(multinode::ChildCommand{.arguments = {argv + 1, argv + argc},
                                            .descriptors = {nothing.get(), to.get(), to.get()},
                                            .own_group = true,
                                            .when_parent_dies = SIGKILL,
                                            .mask = signals.before(),
                                            .only_these = true});
  } catch (const std::exception& e) {
    const std::string text = std::string(e.what()) + "\n";
    (void)!write(to.get(), text.data(), text.size());
    status = 126;
  }
  to.reset();
  const pid_t pid = program ? program->pid() : 0;

  std::atomic<bool> sent = false;
  std::jthread sender([&, pipe = std::move(from)]() mutable {
    try {
      send_output(pipe, pid);
    } catch (const std::exception& e) {
      log(std::string("the output of a process is lost: ") + e.what());
    }
    pipe.reset();  // SIGPIPE for the program
    sent = true;
    kill(getpid(), SIGCHLD);  // wakes the loops below
  });

  Clock::time_point until = Clock::now() + 1s, kill_at = Clock::time_point::max();  // the first time comes at once
  const auto reaped = [&](pid_t child, int how) {
    if (child == pid) status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
  };
  const auto may_wait = [&] {
    std::array<pollfd, 2> entries{{{0, POLLIN, 0}, {signals.descriptor(), POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min(until, kill_at) - Clock::now());
    poll(entries.data(), entries.size(), static_cast<int>(std::max(left, 0ms).count()));
    while (const auto signal = signals.next())
      if (signal->ssi_signo == SIGTERM && pid != 0 && !status)  // later the number may be another's
        kill(-pid, SIGTERM), kill_at = Clock::now() + 500ms;
    if (Clock::now() >= kill_at) multinode::kill_descendants(), kill_at = Clock::time_point::max();
    multinode::reap_children(reaped);
    std::int64_t time = 0;
    if (entries[0].revents && read(0, &time, sizeof time) != sizeof time) return false;  // the node has ended
    if (entries[0].revents) until = Clock::time_point(std::chrono::nanoseconds(time));
    return Clock::now() < until;
  };
  bool in_time = true;
  while (!status && in_time) in_time = may_wait();
  for (; multinode::reap_children(reaped); usleep(1000)) multinode::kill_descendants();
  while (!sent && in_time) in_time = may_wait();
  if (sent) sender.join();
  _exit(status.value_or(1));  // the destructors would wait
}

}  // namespace cluster
