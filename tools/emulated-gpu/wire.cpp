#include "wire.hpp"

#include "device.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace emulated_gpu {

using multinode::Descriptor;

namespace {

// How many blocks a buffer has: none, one, or one per rank; some only on the root.
enum class Blocks { none, one, all, one_of_root, all_of_root };
struct Form {
  const char* name;
  Blocks in, out;
};
using enum Blocks;
constexpr Form forms[] = {
    {"ncclAllReduce", one, one},      {"ncclReduce", one, one_of_root},  {"ncclBroadcast", one_of_root, one},
    {"ncclReduceScatter", all, one},  {"ncclAllGather", one, all},       {"ncclAlltoAll", all, all},
    {"ncclGather", one, all_of_root}, {"ncclScatter", all_of_root, one}, {"ncclSend", one, none},
    {"ncclRecv", none, one}};
const Form& form_of(Op op) { return forms[static_cast<std::size_t>(op)]; }

std::size_t number_of(Blocks blocks, const CallMessage& post, int rank, int size) {
  if (blocks == none || (blocks >= one_of_root && rank != post.peer)) return 0;
  return blocks == all || blocks == all_of_root ? static_cast<std::size_t>(size) : 1;
}

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

sockaddr_in own_address(int socket) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const char* name = std::getenv("NCCL_SOCKET_IFNAME");
  if (!name || !*name) return address;
  ifreq request{};
  std::strncpy(request.ifr_name, name + (*name == '='), IFNAMSIZ - 1);
  if (ioctl(socket, SIOCGIFADDR, &request) != 0)
    throw NcclError{ncclInvalidUsage, fmt::format("ncclGetUniqueId: NCCL_SOCKET_IFNAME={}: there is no interface of "
                                                  "this name with an IPv4 address (emulated-gpu takes one name)",
                                                  name)};
  std::memcpy(&address, &request.ifr_addr, sizeof address);
  return address;
}

}  // namespace

const char* name_of(Op op) { return form_of(op).name; }
std::size_t blocks_in(const CallMessage& post, int rank, int size) {
  return number_of(form_of(post.op).in, post, rank, size);
}
std::size_t blocks_out(const CallMessage& post, int rank, int size) {
  return number_of(form_of(post.op).out, post, rank, size);
}

std::string text_of(const CallMessage& post) {
  std::string more;
  if (reduces(post.op)) more = fmt::format(", {}", multinode::name_of(post.reduction));
  if (has_root(post.op)) more += fmt::format(", root {}", post.peer);
  if (!is_collective(post.op)) more += fmt::format(", {} rank {}", post.op == Op::send ? "to" : "from", post.peer);
  return fmt::format("{}({} x {}{})", name_of(post.op), post.count, multinode::name_of(post.type), more);
}

Connection::Connection(Descriptor fd) : fd_(std::move(fd)) {
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool Connection::send(Frame frame, const void* payload, std::size_t bytes) {
  frame.payload = bytes;
  const std::lock_guard lock(sending_);
  return send_all(fd_.get(), &frame, sizeof frame, bytes ? MSG_MORE : 0) && send_all(fd_.get(), payload, bytes, 0);
}

bool Connection::send(Kind kind, const std::string& text, std::int32_t code) {
  return send({.kind = kind, .code = code}, text.data(), text.size());
}

bool Connection::receive(void* to, std::size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = recv(fd_.get(), at, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void Connection::shut_down() { shutdown(fd_.get(), SHUT_RDWR); }

std::string own_machine() {
  const char* id = std::getenv("NCCL_HOSTID");
  return id ? "id " + std::string(id) : host_name();
}

Descriptor listen(std::string& host_port) {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = own_address(fd.get());
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  char host[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
  if (bind(fd.get(), generic, size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), generic, &size) != 0)
    throw NcclError{ncclSystemError,
                    fmt::format("ncclGetUniqueId: cannot listen on {}: {}", host, std::strerror(errno))};
  host_port = fmt::format("{}:{}", host, ntohs(address.sin_port));
  return fd;
}

Descriptor connect_to(const std::string& host_port) {
  const std::size_t colon = host_port.find(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(host_port.c_str() + colon + 1)));
  inet_pton(AF_INET, host_port.substr(0, colon).c_str(), &address.sin_addr);
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return fd;
}

}  // namespace emulated_gpu
