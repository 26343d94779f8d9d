// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/signals.hpp>

#include <poll.h>
#include <sys/eventfd.h>

#include <memory>
#include <stop_token>

namespace multinode {

Signals::Signals(std::span<const int> numbers) {
  sigemptyset(&handled_);
  for (const int number : numbers) sigaddset(&handled_, number);
  fd_ = Descriptor(check_errno(::signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
  block();
}

Signals::~Signals() {
  while (next()) continue;
  unblock();
}

void Signals::block() { pthread_sigmask(SIG_BLOCK, &handled_, &before_); }
void Signals::unblock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::optional<signalfd_siginfo> Signals::next() const {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return info;
}

std::jthread Signals::call(std::function<void(int)> function) const {
  return std::jthread([this, function = std::move(function)](const std::stop_token& stop) {
    const Descriptor over(check_errno(::eventfd(0, EFD_CLOEXEC), "eventfd"));
    const std::stop_callback wake(stop, [&over] { ::eventfd_write(over.get(), 1); });
    while (!stop.stop_requested()) {
      pollfd polled[] = {{descriptor(), POLLIN, 0}, {over.get(), POLLIN, 0}};
      if (::poll(polled, 2, -1) <= 0 || !polled[0].revents) continue;
      if (const auto info = next()) function(static_cast<int>(info->ssi_signo));
    }
  });
}

std::thread quiet_thread(std::function<void()> function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = [](sigset_t* mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); };
  const std::unique_ptr<sigset_t, decltype(restore)> guard(&before, restore);
  return std::thread(std::move(function));
}

}  // namespace multinode
