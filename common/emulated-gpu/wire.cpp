#include "wire.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace emulated_gpu {

using multinode::Descriptor;

const char* name_of(Op op) {
  constexpr const char* names[] = {"ncclAllReduce", "ncclReduce",   "ncclBroadcast", "ncclReduceScatter",
                                   "ncclAllGather", "ncclAlltoAll", "ncclGather",    "ncclScatter",
                                   "ncclSend",      "ncclRecv",     "ncclCommSplit"};
  return names[static_cast<std::size_t>(op)];
}

std::string text_of(const CallMessage& post) {
  if (is_exchange(post.op)) return name_of(post.op);
  std::string more;
  if (reduces(post.op))
    more = fmt::format(", {}{}", post.multiplied ? "multiplied " : "", multinode::name_of(post.reduction));
  if (has_root(post.op)) more += fmt::format(", root {}", post.peer);
  if (!is_collective(post.op)) more += fmt::format(", {} rank {}", post.op == Op::send ? "to" : "from", post.peer);
  return fmt::format("{}({} x {}{})", name_of(post.op), post.count, name_of(post.type), more);
}

std::size_t bytes_in(const CallMessage& post, int rank, int size) {
  const std::size_t all = post.bytes() * static_cast<std::size_t>(size);
  switch (post.op) {
    case Op::reduce_scatter:
    case Op::all_to_all:
      return all;
    case Op::broadcast:
      return rank == post.peer ? post.bytes() : 0;
    case Op::scatter:
      return rank == post.peer ? all : 0;
    case Op::recv:
      return 0;
    default:
      return post.bytes();
  }
}

std::size_t bytes_out(const CallMessage& post, int rank, int size) {
  const std::size_t all = post.bytes() * static_cast<std::size_t>(size);
  switch (post.op) {
    case Op::all_gather:
    case Op::all_to_all:
    case Op::split:
      return all;
    case Op::reduce:
      return rank == post.peer ? post.bytes() : 0;
    case Op::gather:
      return rank == post.peer ? all : 0;
    case Op::send:
      return 0;
    default:
      return post.bytes();
  }
}

namespace {

bool send_all(int fd, const void* data, std::size_t bytes, int flags) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL | flags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

}  // namespace

bool Connection::send(Frame frame, const void* payload, std::size_t bytes) {
  frame.payload = bytes;
  const std::lock_guard lock(sending_);
  return send_all(fd_.get(), &frame, sizeof frame, bytes ? MSG_MORE : 0) && send_all(fd_.get(), payload, bytes, 0);
}

bool Connection::send(Kind kind, const std::string& text, std::int32_t code) {
  return send({.kind = kind, .code = code}, text.data(), text.size());
}

bool Connection::receive(Frame& frame) { return receive(&frame, sizeof frame); }

bool Connection::receive(void* to, std::size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    if (deadline_) {
      const auto left =
          std::chrono::duration_cast<std::chrono::microseconds>(*deadline_ - std::chrono::steady_clock::now()).count();
      if (left <= 0) return false;
      const timeval time{left / 1'000'000, left % 1'000'000};
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    }
    const ssize_t got = recv(fd_.get(), at, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool Connection::receive(std::string& text, std::size_t bytes) {
  text.resize(bytes);
  return receive(text.data(), bytes);
}

bool Connection::receive(std::vector<std::byte>& data, std::size_t bytes) {
  constexpr std::size_t piece = std::size_t{64} << 20;
  for (data.clear(); data.size() < bytes;) {
    const std::size_t have = data.size(), next = std::min(piece, bytes - have);
    data.resize(have + next);
    if (!receive(data.data() + have, next)) return false;
  }
  return true;
}

void Connection::shut_down() { shutdown(fd_.get(), SHUT_RDWR); }

void Connection::set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline) {
  deadline_ = deadline;
  const timeval none{};
  if (!deadline) setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
}

std::string own_machine() {
  if (const char* id = std::getenv("NCCL_HOSTID")) return "id " + std::string(id);
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string own_host() {
  const char* wanted = std::getenv("NCCL_SOCKET_IFNAME");
  if (!wanted || !*wanted) return "127.0.0.1";
  std::string names = wanted;
  const auto takes = [&](char sign) {
    const bool found = !names.empty() && names[0] == sign;
    if (found) names.erase(0, 1);
    return found;
  };
  const bool except = takes('^'), exact = takes('=');
  const auto is_named = [&](const std::string& interface) {
    std::istringstream words(names);
    for (std::string word; std::getline(words, word, ',');)
      if (exact ? interface == word : interface.starts_with(word)) return true;
    return false;
  };
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string host;
  for (const ifaddrs* one = all; one && host.empty(); one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP)) continue;
    if (is_named(one->ifa_name) == except) continue;
    char text[INET_ADDRSTRLEN];
    sockaddr_in address;
    std::memcpy(&address, one->ifa_addr, sizeof address);
    host = inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  }
  freeifaddrs(all);
  return host;
}

Descriptor listen_on(const std::string& host) {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  if (fd && bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(fd.get(), SOMAXCONN) == 0)
    return fd;
  return {};
}

std::string address_of(int listening_fd, const std::string& host) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(listening_fd, reinterpret_cast<sockaddr*>(&address), &size);
  return host + ":" + std::to_string(ntohs(address.sin_port));
}

Descriptor connect_to(const std::string& host_port) {
  const std::size_t colon = host_port.find(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(host_port.c_str() + colon + 1)));
  if (inet_pton(AF_INET, host_port.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    errno = EINVAL;
    return {};
  }
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace emulated_gpu
