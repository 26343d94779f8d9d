// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/utsname.h>

#include <bit>
#include <cstddef>
#include <memory>

namespace multinode {

std::string host_name() {
  utsname names{};
  uname(&names);
  return names.nodename;
}

std::map<std::string, std::vector<std::string>> addresses_by_interface() {
  std::map<std::string, std::vector<std::string>> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(all, &freeifaddrs);
  for (const ifaddrs* i = all; i; i = i->ifa_next) {
    if (!i->ifa_addr || !i->ifa_netmask) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::size_t begin = family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
    const std::size_t size = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
    const auto* const mask = reinterpret_cast<const unsigned char*>(i->ifa_netmask) + begin;
    int bits = 0;
    for (std::size_t byte = 0; byte < size; ++byte) bits += std::popcount(mask[byte]);
    char text[INET6_ADDRSTRLEN];
    inet_ntop(family, reinterpret_cast<const unsigned char*>(i->ifa_addr) + begin, text, sizeof text);
    addresses[i->ifa_name].push_back(std::string(text) + "/" + std::to_string(bits));
  }
  return addresses;
}

namespace {

Addresses addresses_of(const std::string& host) {
  std::string error;
  return resolve({host, 0}, 0, error);
}

// Whether a server of this machine can listen there: an interface has the address.
bool is_here(const addrinfo& address) {
  const Descriptor fd(socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

// The first address that is not loopback, and, if `here`, is this machine's; "" if there is none.
std::string first_outside(const Addresses& found, bool here = false) {
  for (const addrinfo* a = found.get(); a; a = a->ai_next)
    if (std::string text = number_text(a->ai_addr, a->ai_addrlen);
        !text.empty() && !is_loopback(text) && (!here || is_here(*a)))
      return text;
  return "";
}

}  // namespace

std::string number_text(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  return getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string loopback_address() {
  const Descriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return fd && bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? "127.0.0.1" : "::1";
}

std::string interface_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(all, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* i = all; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
        continue;
      if (family == AF_INET) return number_text(i->ifa_addr, sizeof(sockaddr_in));
      const auto* six = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      if (!IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) return number_text(i->ifa_addr, sizeof *six);
    }
  return "";
}

std::string own_address() {
  std::string address = first_outside(addresses_of(host_name()), true);
  return address.empty() ? interface_address() : address;
}

std::string address_towards(const Endpoint& to) {
  std::string loopback, error;
  const Addresses found = resolve(to, 0, error);
  for (const addrinfo* a = found.get(); a; a = a->ai_next) {
    const Descriptor fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    if (!fd || connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0)
      continue;
    const std::string text = number_text(reinterpret_cast<sockaddr*>(&local), length);
    if (loopback.empty()) loopback = text;
    if (!is_loopback(text)) return text;
  }
  // The name of this machine, which its own /etc/hosts maps to loopback.
  const std::string own = listening_address(to.host).empty() ? own_address() : "";
  return own.empty() ? loopback : own;
}

FreePort::FreePort() : bound_(check_errno(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")) {
  const int on = 1;
  check_errno(setsockopt(bound_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "setsockopt");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  check_errno(bind(bound_.get(), reinterpret_cast<sockaddr*>(&address), size), "bind");
  check_errno(getsockname(bound_.get(), reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  number_ = ntohs(address.sin_port);
}

std::string listening_address(const std::string& host) {
  if (is_loopback(host) || host.find("localhost") != std::string::npos) return host;
  const Addresses found = addresses_of(host);
  return found && first_outside(found).empty() ? "" : host;
}

}  // namespace multinode
