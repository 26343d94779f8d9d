#include "child.hpp"

#include <multinode/base/check.hpp>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace cluster {

using multinode::check_errno;
using multinode::Descriptor;

namespace {

// Out of the way of the child's descriptors 0 to 3.
Descriptor move_up(const Descriptor& fd) {
  return Descriptor(check_errno(fcntl(fd.get(), F_DUPFD_CLOEXEC, 10), "fcntl"));
}

}  // namespace

std::filesystem::path job_program(const std::filesystem::path& jobs, const std::string& name) {
  if (name.empty() || name.front() == '.' || name.find_first_of(std::string_view("/\0", 2)) != name.npos)
    throw StartError(127, "cannot start '" + name + "': a job is a program in the job folder, named without '/'");
  if (!std::filesystem::exists(jobs / name))
    throw StartError(127, "cannot start '" + name + "': it is not in the job folder " + jobs.string());
  return jobs / name;
}

Child::Child(const std::vector<std::string>& command, const std::vector<std::string>& environment,
             const std::filesystem::path& keeper, Clock::time_point until) {
  std::string answer;
  try {
    auto [output, ends] = multinode::make_pipe();
    auto [times, lease] = multinode::make_pipe();
    auto [from, to] = multinode::make_pipe();
    for (Descriptor* const end : {&ends, &times, &to}) *end = move_up(*end);
    output_ = std::move(output);
    lease_ = std::move(lease);
    for (const int fd : {output_.get(), lease_.get()}) check_errno(fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
    allow_until(until);

    std::vector<std::string> arguments = {keeper.string()};
    arguments.insert(arguments.end(), command.begin(), command.end());
    keeper_.emplace(multinode::ChildCommand{.arguments = std::move(arguments),
                                            .environment = environment,
                                            .descriptors = {times.get(), ends.get(), ends.get(), to.get()},
                                            .own_group = true,  // a terminal's Ctrl-C is for `cluster`
                                            .default_signals = true,
                                            .only_these = true});
    pid_fd_ = Descriptor(static_cast<int>(check_errno(syscall(SYS_pidfd_open, keeper_->pid(), 0), "pidfd_open")));
    to.reset();
    std::array<char, 4096> bytes{};
    for (ssize_t count = 0; (count = ::read(from.get(), bytes.data(), bytes.size())) != 0;)
      if (count > 0) answer.append(bytes.data(), static_cast<std::size_t>(count));
  } catch (const std::system_error& e) {
    throw StartError(126, "cannot start '" + command.front() + "': " + e.what());
  }
  if (answer.starts_with('!')) throw StartError(keeper_->wait().as_exit_status(), answer.substr(1));
  if (answer.empty()) throw StartError(126, "cannot start '" + command.front() + "': job_keeper was killed");
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

std::string Child::read() {
  std::array<char, 64 << 10> bytes;
  const ssize_t count = ::read(output_.get(), bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return "";
  const bool over = count == 0 || (count < 0 && (errno != EAGAIN || keeper_->ending()));
  if (over) output_.reset();
  if (count > 0) begun_.append(bytes.data(), static_cast<std::size_t>(count));

  std::string lines;
  std::size_t begin = 0;
  for (std::size_t end; begin < begun_.size(); begin = end) {
    end = begun_.find('\n', begin);
    const bool whole = end != begun_.npos && end - begin < longest_line;
    if (!whole && begun_.size() - begin < longest_line && !over) break;
    end = whole ? end + 1 : std::min(begun_.size(), begin + longest_line);
    lines.append(begun_, begin, end - begin);
    if (!whole) lines += '\n';
  }
  begun_.erase(0, begin);
  return lines;
}

}  // namespace cluster
