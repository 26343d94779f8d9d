// address.hpp: this machine's addresses, as others need them.
#pragma once

#include <string>

#include <sys/socket.h>

namespace multinode {

// This machine's name.
std::string host_name();

namespace detail {

// An address in numbers; "" where that is impossible.
std::string number_text(const sockaddr* address, socklen_t length);
bool is_loopback(const std::string& address);

// Of the first interface that is up and no loopback; "" if there is none.
std::string interface_address();

// What other machines reach this one at: the address of its name, or, where /etc/hosts has that on loopback (127.0.1.1
// on Debian), of its first interface; "" if there is none.
std::string own_address();

// What to listen on so that those who know this machine as `host` reach it: `host`, or every address where that name
// means loopback here.
std::string listening_address(const std::string& host);

}  // namespace detail
}  // namespace multinode
