// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/endpoint.hpp>
#include <multinode/launch/host_list.hpp>

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

namespace multinode {

std::string parse_host(std::string_view text, std::string_view what) {
  const bool brackets = text.starts_with('[') && text.ends_with(']');
  const std::string host(brackets ? text.substr(1, text.size() - 2) : text);
  in6_addr address{};
  const std::size_t scope = std::min(host.find('%'), host.size());  // an interface: fe80::1%eth0
  const bool six = inet_pton(AF_INET6, host.substr(0, scope).c_str(), &address) == 1 && scope + 1 != host.size();
  const bool digits = host.find_first_not_of("0123456789.") == host.npos;  // then an IPv4 address, not a name
  if (six ||
      (!brackets && is_host_name(host) && (!digits || inet_aton(host.c_str(), reinterpret_cast<in_addr*>(&address)))))
    return host;
  throw UsageError(fmt::format("{}: '{}' is neither a host name nor an address: correct it", what, printable(text)));
}

Endpoint parse_endpoint(std::string_view text, std::string_view what) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(
        fmt::format("{}: \"{}\" is not host:port or [IPv6 address]:port: {}", what, printable(text), why));
  };
  const auto colon = text.rfind(':');
  if (colon == text.npos) throw wrong("the port is missing");
  const auto host = text.substr(0, colon);
  if (host.empty()) throw wrong("the host is missing");
  if (host.find(':') != host.npos && !host.starts_with('[')) throw wrong("write an IPv6 address in brackets");
  const auto port = parse_decimal<std::uint16_t>(text.substr(colon + 1));
  if (!port || *port == 0) throw wrong("the port must be a number from 1 to 65535");
  return {parse_host(host, fmt::format("{}: \"{}\"", what, printable(text))), *port};
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
