// endpoint.hpp: a host and a TCP port, and their text form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace multinode {

struct Endpoint {
  std::string host;  // a name or an address
  std::uint16_t port = 0;
};

// "host:port" or "[IPv6 address]:port". parse_endpoint throws UsageError with the text and `what`, the option or
// variable that it came from.
Endpoint parse_endpoint(std::string_view text, std::string_view what);
std::string to_string(const Endpoint& endpoint);

}  // namespace multinode
