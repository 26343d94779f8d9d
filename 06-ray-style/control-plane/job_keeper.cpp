// job_keeper: runs one process of a job, and leaves nothing of it behind. `cluster` starts one per process.
// usage: job_keeper PROGRAM [ARGUMENT...]     Exit status: that of the program; 128 + N if signal N killed it.
//
// Descriptor 0 is a pipe from the node with times, 8 bytes each: nanoseconds of the steady clock until which the
// process may run. At that time, or at the end of the pipe, which is also the node's death, everything is killed: the
// program and all that it started, in whatever session. On descriptor 3 the keeper writes the program's process number,
// or why it could not be started.
#include <multinode/base/signals.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/process/process_tree.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

// Returns the status of the program as waitpid() has it.
int keep(pid_t program, const multinode::Signals& signals) {
  std::optional<int> status;
  const auto reaped = [&](pid_t pid, int how) {
    if (pid == program) status = how;
  };
  Clock::time_point until = Clock::time_point::max();
  std::array<std::int64_t, 64> times{};
  while (true) {
    std::array<pollfd, 2> entries{{{0, POLLIN, 0}, {signals.descriptor(), POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(entries.data(), entries.size(),
         until == Clock::time_point::max() ? -1 : static_cast<int>(std::max<long>(left, 0)));
    while (const auto signal = signals.next())
      if (signal->ssi_signo == SIGTERM) kill(-program, SIGTERM);
    multinode::reap_children(reaped);
    if (status) break;
    if (entries[0].revents) {
      const ssize_t count = read(0, times.data(), sizeof times);
      if (count == 0) break;
      if (count > 0)
        until = Clock::time_point(std::chrono::nanoseconds(times[static_cast<std::size_t>(count) / 8 - 1]));
    }
    if (Clock::now() >= until) break;
  }
  for (; multinode::reap_children(reaped); usleep(1000)) multinode::kill_descendants();
  return status.value_or(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "job_keeper: 'cluster' starts this program; start that one\n";
    return 2;
  }
  multinode::adopt_orphans();
  fcntl(0, F_SETFL, O_NONBLOCK);
  const auto tell_node = [](const std::string& text) {
    (void)!write(3, text.data(), text.size());
    close(3);
  };
  const multinode::Signals signals{SIGTERM, SIGCHLD};
  int status = 0;
  try {
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const multinode::ChildProcess program({.arguments = {argv + 1, argv + argc},
                                           .file = argv[1],
                                           .descriptors = {nothing, 1, 2},
                                           .own_group = true,
                                           .when_parent_dies = SIGKILL,
                                           .mask = signals.before(),
                                           .only_these = true});
    tell_node(std::to_string(program.pid()));
    status = keep(program.pid(), signals);
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));  // ~ChildProcess would wait
  } catch (const multinode::StartError& e) {
    tell_node("!" + std::string(e.what()));
    return e.status;
  }
}
