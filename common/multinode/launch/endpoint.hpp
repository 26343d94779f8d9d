// endpoint.hpp: a host and a TCP port, and their text form.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace multinode {

struct Endpoint {
  std::string host;  // a name or an address
  std::uint16_t port = 0;
};

// A host name, an IPv4 address or an IPv6 address, the last one also in brackets, which the result lacks. Throws
// UsageError with the text and `what` if it can be none of them.
std::string parse_host(std::string_view text, std::string_view what);

// "host:port" or "[IPv6 address]:port". parse_endpoint throws UsageError with the text and `what`, the option or
// variable that it came from.
Endpoint parse_endpoint(std::string_view text, std::string_view what);
std::string to_string(const Endpoint& endpoint);

// A store that a launcher or rank 0 serves for a run, and the run's token, which its processes show to the store.
struct StorePlace : Endpoint {
  std::string token;
};

// "host:port/token". The token is a secret: for the environment of a process, never for a message or a command line.
StorePlace parse_store_place(std::string_view text, std::string_view what);
std::string with_token(const StorePlace& place);

}  // namespace multinode
