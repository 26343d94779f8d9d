#include <mnrun/guard.hpp>

#include <multinode/base/check.hpp>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <vector>

namespace mnrun {

namespace {

[[noreturn]] void guard(int mnrun) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setsid();
  prctl(PR_SET_NAME, "process-guard");
  std::vector<pid_t> groups;
  for (pid_t group = 0; recv(mnrun, &group, sizeof group, MSG_WAITALL) == sizeof group;) {
    if (group)
      groups.push_back(group);
    else
      groups.clear();
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  std::array<int, 2> ends{};
  multinode::check_errno(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  connection_ = multinode::Descriptor(ends[0]);
  const multinode::Descriptor other(ends[1]);
  process_ = multinode::check_errno(fork(), "fork");
  if (process_ != 0) return;
  connection_.reset();
  guard(other.get());
}

Guard::~Guard() {
  kill(process_, SIGKILL);  // also if somebody has stopped it
  waitpid(process_, nullptr, 0);
}

void Guard::tell(pid_t group) const {
  if (send(connection_.get(), &group, sizeof group, MSG_NOSIGNAL) < 0) return;  // somebody killed it
}

}  // namespace mnrun
