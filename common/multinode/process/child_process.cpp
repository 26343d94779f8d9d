// SPDX-License-Identifier: Apache-2.0
#include <multinode/process/child_process.hpp>

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace multinode {

namespace {

// The child's data between vfork and exec, where it must neither allocate nor throw.
struct Prepared {
  const ChildCommand& command;
  const char* file;
  char* const* arguments;
  char* const* environment;
  pid_t parent;
  volatile int error;  // in the parent's memory, which the child of a vfork shares
};

// vfork, not fork: it takes 0.1 ms regardless of the size of this process. Not posix_spawn: it cannot set the signal
// for the parent's death.
[[gnu::noinline]] pid_t start(Prepared& prepared) {
  const pid_t pid = vfork();
  if (pid != 0) return pid;
  const ChildCommand& command = prepared.command;
  const auto give_up = [&prepared] {
    prepared.error = errno;
    _exit(126);
  };
  if (command.own_group && setpgid(0, 0) < 0) give_up();
  if (command.when_parent_dies && prctl(PR_SET_PDEATHSIG, command.when_parent_dies) < 0) give_up();
  if (command.when_parent_dies && getppid() != prepared.parent) _exit(126);  // the parent died before the line above
#ifdef SYS_close_range
  // Kernels before 5.11 lack it. The programs of this project open all files with O_CLOEXEC.
  if (command.only_these) syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
#endif
  int number = 0;
  for (const int fd : command.descriptors) {
    if ((fd == number ? fcntl(fd, F_SETFD, 0) : dup2(fd, number)) < 0) give_up();
    ++number;
  }
  if (command.default_signals)
    for (number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);  // an ignored one stays ignored in exec
  ::signal(SIGPIPE, SIG_DFL);
  if (command.open_files && setrlimit(RLIMIT_NOFILE, &*command.open_files) < 0) give_up();
  if (sigprocmask(SIG_SETMASK, &command.mask, nullptr) < 0) give_up();
  if (command.file.empty())
    execvpe(prepared.file, prepared.arguments, prepared.environment);
  else
    execve(prepared.file, prepared.arguments, prepared.environment);
  give_up();
  return -1;
}

// If SIGCHLD is ignored on entry (`trap '' CHLD` in a shell), the kernel reaps children and keeps no status.
void keep_endings() {
  struct sigaction action {};
  sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler != SIG_IGN && !(action.sa_flags & SA_NOCLDWAIT)) return;
  if (action.sa_handler == SIG_IGN) action.sa_handler = SIG_DFL;
  action.sa_flags &= ~SA_NOCLDWAIT;
  sigaction(SIGCHLD, &action, nullptr);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& path_variable) {
  int status = 127;
  std::string why = name.find('/') == name.npos ? "not found on the PATH" : "no such file";
  const auto executable = [&](const std::string& file) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) {
      if (errno == EACCES) status = 126, why = "permission denied for one of its folders";
      return false;
    }
    if (S_ISREG(info.st_mode) && access(file.c_str(), X_OK) == 0) return true;
    status = 126;
    why = S_ISDIR(info.st_mode) ? "it is a folder" : "it is not executable (chmod +x?)";
    return false;
  };
  if (name.find('/') != name.npos) {
    if (executable(name)) return name;
  } else {
    for (std::string rest = path_variable + ":"; !rest.empty();) {
      const auto colon = rest.find(':');
      const std::string folder = rest.substr(0, colon);
      const std::string file = (folder.empty() ? "." : folder) + "/" + name;
      if (executable(file)) return file;
      rest.erase(0, colon + 1);
    }
  }
  throw StartError(status, "cannot start '" + name + "': " + why);
}

ChildProcess::ChildProcess(const ChildCommand& command) : own_group_(command.own_group) {
  keep_endings();
  const std::string& file = command.file.empty() ? command.arguments.at(0) : command.file;
  const auto arguments = pointers(command.arguments);
  const auto variables = command.environment ? pointers(*command.environment) : std::vector<char*>();
  Prepared prepared{command, file.c_str(), arguments.data(), command.environment ? variables.data() : environ, getpid(),
                    0};
  const pid_t pid = start(prepared);
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
  if (const int error = prepared.error) {
    waitpid(pid, nullptr, 0);
    const bool no_interpreter = error == ENOENT && file.find('/') != file.npos;
    throw StartError(error == ENOENT ? 127 : 126,
                     "cannot start '" + file + "': " +
                         (no_interpreter ? "the interpreter in its first line does not exist" : std::strerror(error)),
                     error);
  }
  pid_ = pid;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), own_group_(other.own_group_), ending_(other.ending_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool ChildProcess::poll() { return poll(WNOHANG); }

const Ending& ChildProcess::wait() {
  while (!ending_) poll(0);
  return *ending_;
}

bool ChildProcess::poll(int flags) {
  if (ending_) return false;
  siginfo_t info{};
  // WNOWAIT: while the process has not been reaped, its pid and its group's are not reused.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | flags) != 0) {
    if (errno == EINTR) return false;
    throw std::system_error(errno, std::generic_category(), "cannot wait for process " + std::to_string(pid_));
  }
  if (info.si_pid == 0) return false;
  ending_ = info.si_code == CLD_EXITED ? Ending{info.si_status, 0} : Ending{0, info.si_status};
  return true;
}

void ChildProcess::signal(int number) const {
  if (pid_ < 0) throw std::logic_error("ChildProcess::signal() after it was moved from");  // -1: all processes
  kill(own_group_ ? -pid_ : pid_, number);
}

}  // namespace multinode
