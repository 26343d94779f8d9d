#include "cluster/listener.hpp"

#include <multinode/address.hpp>
#include <multinode/check.hpp>
#include <multinode/socket.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

namespace cluster {

namespace {

using multinode::Descriptor;
using namespace std::chrono_literals;

constexpr std::string_view preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string address_text(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "an unknown address";
  return text.data();
}

ino_t socket_number(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

}  // namespace

Listener::Listener(const std::string& host, std::uint16_t port) {
  std::string error;
  const auto addresses =
      multinode::detail::resolve({multinode::detail::listening_address(host), port}, AI_PASSIVE, error);
  if (!addresses) throw multinode::UsageError("--host: " + error);
  const auto require = [&](bool right) {
    if (!right)
      throw std::system_error(errno, std::generic_category(),
                              "cannot listen on " + multinode::to_string(multinode::Endpoint{host, port}));
  };
  listening_ = Descriptor(socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  require(bool(listening_));
  const int on = 1, off = 0;
  setsockopt(listening_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (addresses->ai_family == AF_INET6)  // "::" takes IPv4 too
    setsockopt(listening_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  require(bind(listening_.get(), addresses->ai_addr, addresses->ai_addrlen) == 0);
  require(listen(listening_.get(), SOMAXCONN) == 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  require(getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0);
  port_ = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(own).sin_port);
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  require(bool(epoll_) && bool(stop_));
  for (const int fd : {listening_.get(), stop_.get()}) {
    epoll_event event{EPOLLIN, {.fd = fd}};
    require(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }
}

void Listener::start(std::function<void(int)> take,
                     std::function<void(const std::string&, const std::string&)> refused) {
  take_ = std::move(take);
  refused_ = std::move(refused);
  thread_ = std::thread([this] { serve(); });
}

void Listener::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

std::string Listener::peer(const std::string& of_call) const {
  const std::string_view scheme = "fd:";
  int fd = -1;
  if (of_call.starts_with(scheme)) std::from_chars(of_call.data() + scheme.size(), of_call.data() + of_call.size(), fd);
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(fd);
  return found == taken_.end() ? "an unknown address" : found->second.peer;
}

void Listener::serve() {
  while (true) {
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), silent_.empty() ? -1 : 100);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == stop_.get()) return;
      if (fd == listening_.get())
        accept_all();
      else
        look_at(fd);
    }
    const auto now = Clock::now();
    for (auto it = silent_.begin(); it != silent_.end();) {
      const auto here = it++;
      if (here->second.end > now) continue;
      refused_(here->second.peer, "the connection did not begin");
      silent_.erase(here);
    }
  }
}

void Listener::accept_all() {
  while (true) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Descriptor fd(
        accept4(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) std::this_thread::sleep_for(50ms);  // EMFILE: others have to be closed first
      return;
    }
    const std::string peer = address_text(address, size);
    if (count_open() >= most_connections) {
      refused_(peer, "too many connections");
      continue;
    }
    multinode::detail::set_connection_options(fd.get());
    const int number = fd.get();
    epoll_event event{EPOLLIN | EPOLLRDHUP | EPOLLET, {.fd = number}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, number, &event) == 0)
      silent_.insert_or_assign(number, Silent{std::move(fd), peer, Clock::now() + to_begin});
  }
}

void Listener::look_at(int fd) {
  const auto found = silent_.find(fd);
  if (found == silent_.end()) return;
  std::array<char, preface.size()> buffer{};
  const ssize_t count = recv(fd, buffer.data(), buffer.size(), MSG_PEEK);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const std::string_view begun(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (begun.empty() || !preface.starts_with(begun)) {
    refused_(found->second.peer, begun.empty() ? "the connection did not begin" : "it does not speak HTTP/2");
    silent_.erase(found);
  } else if (begun == preface) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    {
      const std::lock_guard lock(mutex_);
      taken_.insert_or_assign(fd, Taken{found->second.peer, socket_number(fd)});
    }
    take_(found->second.fd.release());
    silent_.erase(found);
  }
}

// Only gRPC knows when it closes a connection.
std::size_t Listener::count_open() {
  const std::lock_guard lock(mutex_);
  if (silent_.size() + taken_.size() >= most_connections)
    std::erase_if(taken_, [](const auto& entry) { return socket_number(entry.first) != entry.second.socket; });
  return silent_.size() + taken_.size();
}

}  // namespace cluster
