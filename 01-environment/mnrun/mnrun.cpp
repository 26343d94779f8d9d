// mnrun: starts and supervises the processes of this node, and with the mnruns of other nodes a whole run. Exit status,
// the same on all nodes: that of the process that failed first (128 + N for signal N); 1 another node is missing or was
// lost; 2 bad command line; 126 the program cannot be executed; 127 it was not found.
#include <mnrun/supervisor.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/output.hpp>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

namespace {

// The first process of a container is not ended by signals that it does not handle, and must wait for every orphan. So
// that process does only this: it starts mnrun as its child, forwards signals to it, and returns its exit status.
// Returns nullopt in the child.
std::optional<int> run_as_init() {
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t mnrun = multinode::check_errno(fork(), "fork");
  if (mnrun == 0) {
    // The terminal's signals reach mnrun once, not also by way of its parent.
    if (isatty(0) && setpgid(0, 0) == 0) tcsetpgrp(0, getpgrp());
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return std::nullopt;
  }
  for (;;) {
    const int number = sigwaitinfo(&all, nullptr);
    if (number > 0 && number != SIGCHLD) kill(mnrun, number);
    int status = 0;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
      if (ended == mnrun) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (int fd = 0; fd < 3; ++fd)  // otherwise a pipe would get the number of a closed one
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  try {
    if (getpid() == 1)
      if (const auto status = run_as_init()) return *status;
    const auto options = mnrun::parse(argc, argv, multinode::current_environment());
    return options ? mnrun::supervise(*options) : multinode::flush_output("mnrun", multinode::exit_right);
  } catch (const std::exception& e) {
    multinode::say("mnrun", e.what());
    return dynamic_cast<const multinode::UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
  }
}
