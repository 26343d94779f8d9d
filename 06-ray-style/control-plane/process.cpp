#include "process.hpp"

#include <multinode/check.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cluster {

using multinode::check_errno;
using multinode::Descriptor;
using multinode::make_pipe;

namespace {

constexpr int above_the_childs = 10;

Descriptor move_up(Descriptor fd) {
  return Descriptor(check_errno(fcntl(fd.get(), F_DUPFD_CLOEXEC, above_the_childs), "fcntl"));
}

}  // namespace

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
                 error == ENOENT ? "it is not in the job folder " + jobs.string() : std::string(std::strerror(error)));
  }
  if (!S_ISREG(info.st_mode) || access(path.c_str(), X_OK) != 0)
    throw refuse(126, path.string() + (S_ISDIR(info.st_mode) ? " is a folder" : " is not executable (chmod +x?)"));
  return path;
}

Child::Child(const Command& command, const std::filesystem::path& keeper, Clock::time_point until) {
  std::string answer;
  try {
    std::array<Descriptor, streams> ends;  // the child's
    for (const Stream stream : {out, err}) {
      auto [from, to] = make_pipe();
      pipes_[stream] = std::move(from);
      ends[stream] = move_up(std::move(to));
      check_errno(fcntl(pipes_[stream].get(), F_SETFL, O_NONBLOCK), "fcntl");
    }
    auto [times, lease] = make_pipe();
    auto [from, to] = make_pipe();
    times = move_up(std::move(times));
    to = move_up(std::move(to));
    lease_ = std::move(lease);
    check_errno(fcntl(lease_.get(), F_SETFL, O_NONBLOCK), "fcntl");
    allow_until(until);

    std::vector<std::string> arguments = {keeper.string(), command.program.string()};
    arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
    keeper_.emplace(multinode::ChildCommand{.arguments = std::move(arguments),
                                            .file = keeper.string(),
                                            .environment = command.environment,
                                            .descriptors = {times.get(), ends[out].get(), ends[err].get(), to.get()},
                                            .own_group = true,  // a terminal's Ctrl-C is for `cluster`
                                            .default_signals = true,
                                            .only_these = true});
    pid_fd_ = Descriptor(static_cast<int>(check_errno(syscall(SYS_pidfd_open, keeper_->pid(), 0), "pidfd_open")));
    to.reset();
    std::array<char, 4096> bytes{};
    for (ssize_t count = 0; (count = ::read(from.get(), bytes.data(), bytes.size())) != 0;)
      if (count > 0) answer.append(bytes.data(), static_cast<std::size_t>(count));
  } catch (const std::system_error& e) {
    throw StartError(126, "cannot start '" + command.program.string() + "': " + e.what());
  }
  if (answer.starts_with('!')) throw StartError(keeper_->wait().as_exit_status(), answer.substr(1));
  if (answer.empty()) throw StartError(126, "cannot start '" + command.program.string() + "': job_keeper was killed");
  pid_ = static_cast<pid_t>(std::stol(answer));
}

Child::~Child() {
  kill();
  keeper_->wait();  // its destructor would kill it before it has killed the others
}

void Child::allow_until(Clock::time_point time) const {
  const std::int64_t count = std::chrono::nanoseconds(time.time_since_epoch()).count();
  (void)!write(lease_.get(), &count, sizeof count);  // full: the keeper is frozen
}

std::optional<int> Child::status() {
  keeper_->look();
  if (!keeper_->ending()) return {};
  return keeper_->ending()->as_exit_status();
}

bool Child::drained() const {
  return keeper_->ending() &&
         std::none_of(pipes_.begin(), pipes_.end(), [](const Descriptor& pipe) { return bool(pipe); });
}

std::string Child::read(Stream stream) {
  Descriptor& pipe = pipes_[stream];
  std::string& begun = begun_[stream];
  std::array<char, 64 << 10> bytes;
  const ssize_t count = ::read(pipe.get(), bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return "";
  const bool over = count == 0 || (count < 0 && (errno != EAGAIN || keeper_->ending()));
  if (over) pipe.reset();
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
