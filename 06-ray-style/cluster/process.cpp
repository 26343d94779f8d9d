#include "process.hpp"

#include <multinode/check.hpp>

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>
#include <utility>

namespace cluster {

using multinode::check_errno;
using multinode::Descriptor;
using multinode::make_pipe;

namespace {

// A shell can name the descriptors up to 9 alone, so these are the child's.
constexpr int report_fd = 3, secret_fd = 4, above_the_childs = 10;

Descriptor move_up(Descriptor fd) {
  return Descriptor(check_errno(fcntl(fd.get(), F_DUPFD_CLOEXEC, above_the_childs), "fcntl"));
}

// The guard: reads which groups there are, and kills those that are left when nobody writes any more.
[[noreturn]] void guard_groups(int from) {
  std::set<pid_t> groups;
  pid_t group = 0;
  for (;;) {
    const ssize_t count = read(from, &group, sizeof group);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof group) break;
    group > 0 ? void(groups.insert(group)) : void(groups.erase(-group));
  }
  // The lock is given back when all are gone; a process that nobody waits for is never gone.
  for (int tries = 0; tries < 40 && !groups.empty(); ++tries) {
    std::erase_if(groups, [](pid_t g) { return kill(-g, SIGKILL) != 0; });
    usleep(5000);
  }
  _exit(0);
}

}  // namespace

Guard::Guard(int kept) {
  auto [from, to] = make_pipe();
  pid_ = check_errno(fork(), "fork");
  if (pid_ == 0) {
    setpgid(0, 0);  // a terminal's Ctrl-C is for the daemon
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    prctl(PR_SET_NAME, "cluster-guard");
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= std::max({nothing, kept, from.get(), to.get(), 2}); ++fd) {
      if (fd <= 2)
        dup2(nothing, fd);
      else if (fd != kept && fd != from.get())
        close(fd);
    }
    guard_groups(from.get());
  }
  pipe_ = std::move(to);
}

Guard::~Guard() {
  pipe_.reset();
  waitpid(pid_, nullptr, 0);
}

// A guard that was killed is missed when it is needed, and not before.
void Guard::watch(pid_t group) { (void)!write(pipe_.get(), &group, sizeof group); }
void Guard::forget(pid_t group) { watch(-group); }

std::filesystem::path find_program(const std::filesystem::path& jobs, const std::string& name) {
  const auto refuse = [&](int status, const std::string& why) {
    return StartError(status, "cannot start '" + name + "': " + why);
  };
  if (name.empty() || name.front() == '.' || name.find_first_of(std::string_view("/\0", 2)) != name.npos)
    throw refuse(127, "a job is a program in the job folder, named without '/'");
  const std::filesystem::path path = jobs / name;
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    const int error = errno;
    throw refuse(error == ENOENT ? 127 : 126,
                 error == ENOENT ? "it is not in the job folder " + jobs.string() : std::string(strerror(error)));
  }
  if (!S_ISREG(info.st_mode) || access(path.c_str(), X_OK) != 0)
    throw refuse(126, path.string() + (S_ISDIR(info.st_mode) ? " is a folder" : " is not executable (chmod +x?)"));
  return path;
}

Child::Child(const Command& command, Guard* guard) : guard_(guard) {
  const std::string cannot_start = "cannot start '" + command.program.string() + "': ";
  try {
    const Descriptor nothing = move_up(Descriptor(check_errno(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null")));
    std::array<Descriptor, streams> ends;  // the child's
    for (const Stream stream : {out, err, report}) {
      auto [from, to] = make_pipe();
      pipes_[stream] = std::move(from);
      ends[stream] = move_up(std::move(to));
      check_errno(fcntl(pipes_[stream].get(), F_SETFL, O_NONBLOCK), "fcntl");
    }
    auto [secret, secret_end] = make_pipe();
    secret = move_up(std::move(secret));
    check_errno(fcntl(secret_end.get(), F_SETFL, O_NONBLOCK), "fcntl");
    const std::string line = command.secret + "\n";
    if (write(secret_end.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw StartError(126, cannot_start + "the job's secret is too long");

    std::vector<std::string> arguments = {command.program.string()}, environment = command.environment;
    arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
    environment.push_back("CLUSTER_REPORT_FD=" + std::to_string(report_fd));
    environment.push_back("CLUSTER_SECRET_FD=" + std::to_string(secret_fd));
    static_assert(report_fd == 3 && secret_fd == 4);
    process_.emplace(multinode::ChildCommand{
        .arguments = arguments,
        .file = arguments[0],
        .environment = environment,
        .descriptors = {nothing.get(), ends[out].get(), ends[err].get(), ends[report].get(), secret.get()},
        .own_group = true,
        .when_parent_dies = SIGKILL,
        .default_signals = true,
        .only_these = true});
    pid_fd_ = Descriptor(static_cast<int>(check_errno(syscall(SYS_pidfd_open, pid(), 0), "pidfd_open")));
  } catch (const std::system_error& e) {
    throw StartError(126, cannot_start + e.what());
  }
  if (guard_) guard_->watch(pid());
}

Child::~Child() {
  signal(SIGKILL);
  if (guard_) guard_->forget(pid());  // before its number can be another's
}

std::optional<int> Child::status() {
  if (process_->look()) signal(SIGKILL);
  if (!process_->ending()) return {};
  return process_->ending()->as_exit_status();
}

bool Child::drained() const {
  for (const Descriptor& pipe : pipes_)
    if (pipe) return false;
  return process_->ending().has_value();
}

std::string Child::read(Stream stream) {
  Descriptor& pipe = pipes_[stream];
  std::string& begun = begun_[stream];
  std::array<char, 64 << 10> bytes;
  const ssize_t count = ::read(pipe.get(), bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return "";
  // Who still has the other end of the pipe left the group of the process that is gone.
  const bool over = count == 0 || (count < 0 && (errno != EAGAIN || process_->ending()));
  if (over) pipe.reset();

  if (count > 0 && stream != report) {
    const bool was_full = output_ > most_output;
    output_ += static_cast<std::size_t>(count);
    if (was_full) return "";
    if (output_ > most_output) {
      if (!begun.empty()) begun += '\n';
      return std::exchange(begun, "") + "cluster: this process wrote more than 64 MiB; the rest is dropped\n";
    }
  }
  if (count > 0) begun.append(bytes.data(), static_cast<std::size_t>(count));

  std::string lines;
  std::size_t begin = 0;
  for (std::size_t end; begin < begun.size(); begin = end) {
    end = begun.find('\n', begin);
    const bool whole = end != begun.npos && end - begin < longest_line;
    if (!whole && begun.size() - begin < longest_line && !over) break;
    end = whole ? end + 1 : std::min(begun.size(), begin + longest_line);
    lines.append(begun, begin, end - begin);
    if (!whole) lines += '\n';
  }
  begun.erase(0, begin);
  return lines;
}

}  // namespace cluster
