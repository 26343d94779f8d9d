// SPDX-License-Identifier: Apache-2.0
#include <multinode/net/socket.hpp>

#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <random>
#include <thread>

namespace multinode {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds longest_pause(200), longest_attempt(10'000), name_lifetime(10'000);

// getaddrinfo may ask a name server and has no deadline, so another thread waits for it.
Addresses resolve_until(const Endpoint& server, Deadline& deadline, std::string& error) {
  if (auto numeric = resolve(server, AI_NUMERICHOST, error)) return numeric;
  auto answer = std::make_shared<std::promise<std::pair<Addresses, std::string>>>();
  auto future = answer->get_future();
  std::thread([answer, server] {
    std::string reason;
    auto found = resolve(server, 0, reason);
    answer->set_value({std::move(found), std::move(reason)});
  }).detach();
  while (future.wait_for(deadline.left()) != std::future_status::ready) {
    if (!deadline.passed()) continue;
    error = "the name " + in_quotes(server.host) + " was not resolved before the deadline";
    return {};
  }
  auto [found, reason] = future.get();
  error = reason;
  return found;
}

}  // namespace

std::string to_text(milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string in_quotes(std::string_view key) {
  constexpr std::size_t shown = 120;
  std::string text = "\"";
  for (const char c : key.substr(0, shown)) {
    if (c >= ' ' && c <= '~')
      text += c;
    else {
      constexpr std::string_view digits = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      text += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return text + (key.size() > shown ? "...\"" : "\"");
}

Addresses resolve(const Endpoint& endpoint, int flags, std::string& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(endpoint.host.empty() ? nullptr : endpoint.host.c_str(),
                                 std::to_string(endpoint.port).c_str(), &hints, &found);
  if (code != 0) {
    error = "no address for " + in_quotes(endpoint.host) + ": " +
            (code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code));
    return {};
  }
  return {found, ::freeaddrinfo};
}

void set_connection_options(int fd) noexcept {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 9'000);  // ms; keep-alive does not probe while data is in flight
}

std::string why_broken(int fd, int error) {
  int sent = 0;
  if (error != ETIMEDOUT || ::ioctl(fd, SIOCOUTQ, &sent) < 0 || sent == 0) return std::strerror(error);
  return std::to_string(sent) +
         " bytes were not acknowledged for 9 s: the other host is down, the link is cut, or the network drops large "
         "packets (ip link: an MTU that a switch in between does not carry)";
}

TcpClient::TcpClient(Endpoint server, milliseconds timeout, const Handshake& handshake)
    : server_(std::move(server)), name_("the store at " + to_string(server_)) {
  Deadline deadline(timeout);
  std::string error = "no time left";
  std::minstd_rand random(std::random_device{}());
  for (milliseconds longest(1);; longest = std::min(2 * longest, longest_pause)) {
    bool again = true;
    if (try_connect(deadline, error)) {
      try {
        handshake(*this, deadline);
        return;
      } catch (const ConnectionClosed&) {
        error = "it closes the connection (it is another kind of server, or it is full)";
        lost("");
      } catch (const StoreTimeout&) {
        error = "it accepts the connection but does not answer";
        again = false;
      }
    }
    // Thousands of ranks must not come all at once.
    const milliseconds pause = longest / 2 + longest * std::uniform_int_distribution(0, 100)(random) / 100;
    if (!again || pause >= deadline.all_left())
      throw StoreTimeout("no answer from " + name_ + " within " + to_text(timeout) + ": " + error);
    std::this_thread::sleep_for(pause);
  }
}

bool TcpClient::try_connect(Deadline& deadline, std::string& error) {
  taken_ = filled_ = 0;
  if (!addresses_ || Deadline::Clock::now() > resolved_ + name_lifetime) {
    addresses_ = resolve_until(server_, deadline, error);
    resolved_ = Deadline::Clock::now();
  }
  int left = 0;
  for (const addrinfo* address = addresses_.get(); address; address = address->ai_next) ++left;
  for (const addrinfo* address = addresses_.get(); address; address = address->ai_next, --left) {
    // One that does not answer leaves time for the others.
    const milliseconds before = deadline.all_left(), limit = std::min<milliseconds>(before / left, longest_attempt);
    Deadline part(limit);
    const bool connected = try_address(*address, part, error);
    // Nobody asked `deadline` meanwhile. It would take a long attempt for a time in which this process was stopped.
    deadline = Deadline(before - limit + part.all_left());
    if (connected) return true;
  }
  return false;
}

bool TcpClient::try_address(const addrinfo& address, Deadline& deadline, std::string& error) {
  fd_ = Descriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_) {
    error = std::strerror(errno);
    return false;
  }
  set_connection_options(fd_.get());
  int result = ::connect(fd_.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (result == EINPROGRESS || result == EINTR) {
    if (!wait_for(POLLOUT, deadline)) {
      result = ETIMEDOUT;
    } else {
      socklen_t size = sizeof result;
      ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &result, &size);
    }
  }
  // A connection to a free port of this host can get that port as its source port and so connect to itself.
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  if (result == 0 && ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
      ::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&other), &other_size) == 0 && own_size == other_size &&
      std::memcmp(&own, &other, own_size) == 0)
    result = ECONNREFUSED;
  if (result == 0) return true;
  error = std::strerror(result);
  if (result == ECONNREFUSED) error += " (no process listens there)";
  if (result == ETIMEDOUT) error += " (a firewall in between, or a host that is down?)";
  if (result == ENETUNREACH || result == EHOSTUNREACH) error += " (a wrong address or interface?)";
  fd_.reset();
  return false;
}

bool TcpClient::wait_for(short events, Deadline& deadline) {
  while (true) {
    pollfd waiting{fd_.get(), events, 0};
    const auto left = deadline.left();
    const int ready = ::poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready == 0 && left.count() == 0) return false;
    if (ready < 0 && errno != EINTR) lose(std::strerror(errno));
  }
}

// Sets the reason why every later call fails, and returns it.
std::string TcpClient::lost(std::string reason) {
  const std::lock_guard lock(mutex_);
  return lost_ = std::move(reason);
}

void TcpClient::usable(std::string_view doing) const {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) throw StoreLost(lost_);
  if (!fd_) throw StoreLost("the connection to " + name_ + " is already closed, while " + std::string(doing));
}

void TcpClient::lose(const std::string& reason) { throw StoreLost(lost("lost " + name_ + ": " + reason)); }

void TcpClient::send(std::string_view bytes, Deadline& deadline, std::string_view doing) {
  usable(doing);
  while (!bytes.empty()) {
    const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(POLLOUT, deadline)) {
        throw StoreTimeout(lost(name_ + " does not read, while " + std::string(doing)));
      }
    } else if (errno != EINTR) {
      throw ConnectionClosed(
          lost("lost " + name_ + ": " + why_broken(fd_.get(), errno) + ", while " + std::string(doing)));
    }
  }
}

bool TcpClient::poll_input(Deadline& deadline, std::string_view doing) {
  usable(doing);
  return taken_ < filled_ || wait_for(POLLIN, deadline);
}

void TcpClient::receive(char* to, std::size_t count, Deadline& deadline, std::string_view doing) {
  while (count > 0) {
    if (!poll_input(deadline, doing)) {
      throw StoreTimeout(lost(name_ + " does not answer, while " + std::string(doing)));
    }
    if (taken_ == filled_) {
      const auto got = ::recv(fd_.get(), buffer_.data(), buffer_.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) {
        throw ConnectionClosed(lost("lost " + name_ + ": " +
                                    (got == 0 ? "it closed the connection" : why_broken(fd_.get(), errno)) +
                                    ", while " + std::string(doing)));
      }
      taken_ = 0;
      filled_ = static_cast<std::size_t>(got);
    }
    const auto part = std::min(count, filled_ - taken_);
    std::memcpy(to, buffer_.data() + taken_, part);
    taken_ += part;
    to += part;
    count -= part;
  }
}

}  // namespace multinode
