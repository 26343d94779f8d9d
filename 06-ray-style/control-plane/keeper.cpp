#include "keeper.hpp"

#include <multinode/base/signals.hpp>
#include <multinode/process/process_tree.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace cluster {

using multinode::check_errno;
using multinode::Descriptor;
using multinode::StartError;

int keep(int argc, const char* const* argv) {
  if (argc < 3) throw multinode::UsageError("'cluster keep' is for 'cluster start'; use that one");
  multinode::adopt_orphans();
  const multinode::Signals signals{SIGTERM, SIGCHLD};
  const auto tell_node = [](const std::string& text) { (void)!write(0, text.data(), text.size()); };
  std::optional<int> status;
  try {
    std::filesystem::current_path(argv[1]);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const multinode::ChildProcess program({.arguments = {argv + 2, argv + argc},
                                           .descriptors = {nothing, 1, 2},
                                           .own_group = true,
                                           .when_parent_dies = SIGKILL,
                                           .mask = signals.before(),
                                           .only_these = true});
    tell_node(std::to_string(program.pid()) + "\n");
    const auto reaped = [&](pid_t pid, int how) {
      if (pid == program.pid()) status = how;
    };
    Child::Clock::time_point until = Child::Clock::now() + std::chrono::seconds(1);  // the first time comes at once
    while (!status && Child::Clock::now() < until) {
      std::array<pollfd, 2> entries{{{0, POLLIN, 0}, {signals.descriptor(), POLLIN, 0}}};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Child::Clock::now()).count();
      poll(entries.data(), entries.size(), static_cast<int>(std::max<long>(left, 0)));
      while (const auto signal = signals.next())
        if (signal->ssi_signo == SIGTERM) kill(-program.pid(), SIGTERM);
      multinode::reap_children(reaped);
      std::int64_t time = 0;
      if (entries[0].revents && recv(0, &time, sizeof time, MSG_WAITALL) != sizeof time) break;
      if (entries[0].revents) until = Child::Clock::time_point(std::chrono::nanoseconds(time));
    }
    for (; multinode::reap_children(reaped); usleep(1000)) multinode::kill_descendants();
    _exit(WIFSIGNALED(*status) ? 128 + WTERMSIG(*status) : WEXITSTATUS(*status));  // ~ChildProcess would wait
  } catch (const StartError& e) {
    tell_node(std::string("!") + e.what() + "\n");
    return e.status;
  } catch (const std::filesystem::filesystem_error& e) {
    tell_node("!cannot enter the working folder " + e.path1().string() + ": " + e.code().message() + "\n");
    return 126;
  }
}

Child::Child(const std::vector<std::string>& command, const std::string& folder, std::vector<std::string> environment,
             Clock::time_point until) {
  std::array<int, 2> ends{};
  check_errno(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  keeper_end_ = Descriptor(ends[0]);
  Descriptor its_end(ends[1]);
  auto [output, out] = multinode::make_pipe();
  output_ = std::move(output);
  check_errno(fcntl(output_.get(), F_SETFL, O_NONBLOCK), "fcntl");
  for (Descriptor* const end : {&its_end, &out})  // out of the way of the child's descriptors 0 to 2
    *end = Descriptor(check_errno(fcntl(end->get(), F_DUPFD_CLOEXEC, 10), "fcntl"));
  std::vector<std::string> arguments = {"cluster", "keep", folder};
  arguments.insert(arguments.end(), command.begin(), command.end());
  allow_until(until);
  keeper_.emplace(multinode::ChildCommand{.arguments = std::move(arguments),
                                          .file = "/proc/self/exe",
                                          .environment = std::move(environment),
                                          .descriptors = {its_end.get(), out.get(), out.get()},
                                          .own_group = true,  // a terminal's Ctrl-C is for `cluster`
                                          .default_signals = true,
                                          .only_these = true});
  its_end.reset();
  std::string answer;
  for (char byte = 0; recv(keeper_end_.get(), &byte, 1, 0) == 1 && byte != '\n';) answer += byte;
  if (answer.starts_with('!')) throw StartError(keeper_->wait().as_exit_status(), answer.substr(1));
  if (answer.empty()) throw StartError(126, "cannot start '" + command.front() + "': its keeper was killed");
  pid_ = static_cast<pid_t>(std::stol(answer));
}

Child::~Child() {
  kill();
  keeper_->wait();  // its destructor would kill the keeper before that has killed the others
}

void Child::allow_until(Clock::time_point time) const {
  const std::int64_t count = std::chrono::nanoseconds(time.time_since_epoch()).count();
  (void)!send(keeper_end_.get(), &count, sizeof count, MSG_DONTWAIT | MSG_NOSIGNAL);  // full: the keeper is frozen
}

std::optional<int> Child::status() {
  if (output_)
    keeper_->look();
  else
    keeper_->wait();  // only its end closes the pipe
  if (!keeper_->ending()) return {};
  return keeper_->ending()->as_exit_status();
}

std::string Child::read() {
  std::array<char, longest_line> bytes;
  const ssize_t count = ::read(output_.get(), bytes.data(), bytes.size());
  const bool over = count == 0 || (count < 0 && errno != EINTR && (errno != EAGAIN || keeper_->ending()));
  if (over) output_.reset();
  if (count > 0) begun_.append(bytes.data(), static_cast<std::size_t>(count));
  if (over && !begun_.empty() && !begun_.ends_with('\n')) begun_ += '\n';
  std::size_t end = begun_.rfind('\n') + 1;  // 0: no whole line
  if (end == 0 && begun_.size() >= longest_line) begun_ += '\n', end = begun_.size();
  std::string lines = begun_.substr(0, end);
  begun_.erase(0, end);
  return lines;
}

}  // namespace cluster
