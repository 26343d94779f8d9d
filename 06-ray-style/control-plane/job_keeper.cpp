// job_keeper: runs one process of a job, and leaves nothing of it behind. `cluster` starts one per process.
// usage: job_keeper PROGRAM [ARGUMENT...]     Exit status: that of the program; 128 + N if signal N killed it.
//
// Descriptor 0 is a pipe from the node with times, 8 bytes each: nanoseconds of the steady clock until which the
// process may run. At that time, or at the end of the pipe, which is also the node's death, everything is killed: the
// program and all that it started, in whatever session. On descriptor 3 the keeper writes the program's process number,
// or why it could not be started.
#include <multinode/child_process.hpp>
#include <multinode/signals.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

pid_t parent_of(const std::filesystem::path& process) {
  std::string line;
  std::getline(std::ifstream(process / "stat"), line);  // "17 (name) S 1 ..."
  const std::size_t name_ends = line.rfind(") ");
  return name_ends == line.npos ? 0 : static_cast<pid_t>(std::strtol(line.c_str() + name_ends + 4, nullptr, 10));
}

// Whatever has no parent any more becomes a child of this process (PR_SET_CHILD_SUBREAPER). So all are gone when there
// are no children.
void kill_all(pid_t program, int& status) {
  for (;; usleep(1000)) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc"))
      if (parent_of(entry.path()) == getpid()) kill(std::atoi(entry.path().filename().c_str()), SIGKILL);
    int ended = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &ended, WNOHANG)) > 0)
      if (pid == program) status = ended;
    if (pid < 0) return;
  }
}

// Returns the status of the program as waitpid() has it.
int keep(pid_t program, const multinode::Signals& signals) {
  int status = 0, ended = 0;
  Clock::time_point until = Clock::time_point::max();
  std::array<std::int64_t, 64> times{};
  while (true) {
    std::array<pollfd, 2> entries{{{0, POLLIN, 0}, {signals.descriptor(), POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(entries.data(), entries.size(),
         until == Clock::time_point::max() ? -1 : static_cast<int>(std::max<long>(left, 0)));
    while (const auto signal = signals.next())
      if (signal->ssi_signo == SIGTERM) kill(-program, SIGTERM);
    for (pid_t pid = 0; (pid = waitpid(-1, &ended, WNOHANG)) > 0;)
      if (pid == program) {
        kill_all(program, status);
        return ended;
      }
    if (entries[0].revents) {
      const ssize_t count = read(0, times.data(), sizeof times);
      if (count == 0) break;
      if (count > 0)
        until = Clock::time_point(std::chrono::nanoseconds(times[static_cast<std::size_t>(count) / 8 - 1]));
    }
    if (Clock::now() >= until) break;
  }
  kill_all(program, status);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "job_keeper: 'cluster' starts this program; start that one\n";
    return 2;
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
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
