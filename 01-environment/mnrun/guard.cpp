#include <mnrun/guard.hpp>

#include <multinode/base/check.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <utility>
#include <vector>

namespace mnrun {

namespace {

[[noreturn]] void guard(const multinode::Descriptor& mnrun) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setsid();
  prctl(PR_SET_NAME, "process-guard");
  std::vector<pid_t> groups;
  for (pid_t group = 0; read(mnrun.get(), &group, sizeof group) == sizeof group;) {
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
  auto [from, to] = multinode::make_pipe();
  process_ = multinode::check_errno(fork(), "fork");
  if (process_ == 0) {
    to.reset();
    guard(from);
  }
  pipe_ = std::move(to);
}

Guard::~Guard() {
  kill(process_, SIGKILL);  // also if somebody has stopped it
  waitpid(process_, nullptr, 0);
}

void Guard::send(pid_t group) const {
  if (write(pipe_.get(), &group, sizeof group) < 0) return;  // somebody killed it
}

}  // namespace mnrun
