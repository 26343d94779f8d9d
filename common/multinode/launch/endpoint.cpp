// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/endpoint.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace multinode {

Endpoint parse_endpoint(std::string_view text, std::string_view what) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(
        fmt::format("{}: \"{}\" is not host:port or [IPv6 address]:port: {}", what, printable(text), why));
  };
  const auto colon = text.rfind(':');
  if (colon == text.npos) throw wrong("the port is missing");
  auto host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != host.npos)
    throw wrong("write an IPv6 address in brackets");
  if (host.empty()) throw wrong("the host is missing");
  if (host.find_first_of("[] \t\r\n/") != host.npos) throw wrong("the host contains an invalid character");
  const auto port = parse_decimal<std::uint16_t>(text.substr(colon + 1));
  if (!port || *port == 0) throw wrong("the port must be a number from 1 to 65535");
  return {std::string(host), *port};
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", endpoint.host, v6 ? "]" : "", endpoint.port);
}

StorePlace parse_store_place(std::string_view text, std::string_view what) {
  const auto slash = std::min(text.rfind('/'), text.size());
  return {parse_endpoint(text.substr(0, slash), what), std::string(text.substr(std::min(slash + 1, text.size())))};
}

std::string with_token(const StorePlace& place) { return to_string(place) + "/" + place.token; }

}  // namespace multinode
