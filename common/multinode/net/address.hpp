// address.hpp: the addresses at which other machines reach this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/descriptor.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sys/socket.h>

namespace multinode {

struct Endpoint;

// This machine's name, as uname() gives it.
std::string host_name();

// The addresses of each network interface, as "10.0.0.3/24"; empty if the kernel does not list them.
std::map<std::string, std::vector<std::string>> addresses_by_interface();

// The address in numeric form; "" if it cannot be converted.
std::string number_text(const sockaddr* address, socklen_t length);
bool is_loopback(const std::string& address);

// 127.0.0.1, or ::1 on a machine that lacks it.
std::string loopback_address();

// The IPv4 address, or else the IPv6 address, of the first interface that is up and is not loopback; "" if there is
// none. Link-local IPv6 addresses do not count.
std::string interface_address();

// The address at which other machines reach this one: that of its host name, or, if the name stands for loopback
// (127.0.1.1 on Debian) or an address that no interface has (NAT, a floating IP, an old /etc/hosts), that of its first
// interface; "" if there is none.
std::string own_address();

// This machine's address on the route to `to`, taken from a connected UDP socket, which sends nothing. A loopback
// address only if there is no other; "" if there is none.
std::string address_towards(const Endpoint& to);

// Reserves a TCP port that is free on all addresses. While this object lives, the kernel does not choose the port for
// another socket, but a server that sets SO_REUSEADDR, as most do, can listen on it. Throws std::system_error.
class FreePort {
 public:
  FreePort();
  std::uint16_t number() const { return number_; }

 private:
  Descriptor bound_;  // does not listen
  std::uint16_t number_ = 0;
};

// The address to listen on, so that clients that know this machine as `host` reach it: `host`, or "" (all
// addresses) if that name resolves to loopback on this machine.
std::string listening_address(const std::string& host);

}  // namespace multinode
