#include <mnrun/child.hpp>

#include <multinode/descriptor.hpp>

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace mnrun {

namespace {

// Everything the child needs between vfork and exec, where it must neither allocate nor throw.
struct Prepared {
  const char* file;
  char* const* arguments;
  char* const* environment;
  const int* streams;
  bool own_group;
  const sigset_t* mask;
  pid_t parent;
  int failure;  // errno is written here where exec fails; closed by exec
};

// vfork and not fork: it takes the same 0.1 ms however large the agent is. posix_spawn cannot set the signal that comes
// when the parent dies.
[[gnu::noinline]] pid_t start(const Prepared& prepared) {
  const pid_t pid = vfork();
  if (pid != 0) return pid;
  const auto give_up = [&prepared] {
    const int error = errno;
    _exit(write(prepared.failure, &error, sizeof error) == sizeof error ? 127 : 126);
  };
  if (prepared.own_group && setpgid(0, 0) < 0) give_up();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) give_up();
  if (getppid() != prepared.parent) _exit(127);  // it died before the line above
  for (int i = 0; i < 3; ++i) {
    if (prepared.streams[i] == i) continue;  // else it is above 2 and closes itself
    if (dup2(prepared.streams[i], i) < 0) give_up();
  }
  ::signal(SIGPIPE, SIG_DFL);
  if (sigprocmask(SIG_SETMASK, prepared.mask, nullptr) < 0) give_up();
  execve(prepared.file, prepared.arguments, prepared.environment);
  give_up();
  return -1;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
}

std::string Ending::text() const {
  return signal ? "was killed by signal " + std::to_string(signal) + " (" + signal_name(signal) + ")"
                : "ended with exit status " + std::to_string(status);
}

std::string find_program(const std::string& name, const std::string& path_variable) {
  int status = 127;
  std::string why = name.find('/') == name.npos ? "not found on the PATH" : "there is no such file";
  const auto executable = [&](const std::string& file) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) {
      if (errno == EACCES) status = 126, why = "a folder on the way to it may not be entered";
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
  throw ProgramError(status, "cannot start '" + name + "': " + why);
}

Child::Child(const Command& command) : own_group_(command.own_group) {
  const auto arguments = pointers(command.arguments), environment = pointers(command.environment);
  auto [failure, write_end] = multinode::make_pipe();
  const pid_t pid = start({command.file.c_str(), arguments.data(), environment.data(), command.streams,
                           command.own_group, &command.mask, getpid(), write_end.get()});
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
  write_end.reset();
  int error = 0;
  if (read(failure.get(), &error, sizeof error) == sizeof error) {
    waitpid(pid, nullptr, 0);
    const std::string why =
        error == ENOENT ? "the interpreter that its first line names is not there" : strerror(error);
    throw ProgramError(error == ENOENT ? 127 : 126, "cannot start '" + command.file + "': " + why);
  }
  pid_ = pid;
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), own_group_(other.own_group_), ending_(other.ending_) {}

Child::~Child() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool Child::look() {
  if (ending_) return false;
  siginfo_t info{};
  // WNOWAIT: while the process is not waited for, its number and its group's are not used again.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
  ending_ = info.si_code == CLD_EXITED ? Ending{info.si_status, 0} : Ending{0, info.si_status};
  return true;
}

bool Child::ending_now() const {
  if (ending_) return false;
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string line;
  std::getline(file, line);
  // "pid (name) state ppid pgrp session tty tpgid flags ...": see proc(5). The name may hold anything.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int i = 0; i < 6; ++i) rest >> skipped;
  unsigned flags = 0;
  constexpr unsigned exiting = 4;  // PF_EXITING
  return rest >> flags && (flags & exiting);
}

void Child::signal(int number) const { kill(own_group_ ? -pid_ : pid_, number); }

}  // namespace mnrun
