#include <multinode/check.hpp>
#include <multinode/endpoint.hpp>

#include <charconv>

namespace multinode {

Endpoint parse_endpoint(std::string_view text, std::string_view what) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(std::string(what) + ": \"" + std::string(text) +
                      "\" is no host:port or [IPv6 address]:port: " + std::string(why));
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) throw wrong("there is no port");
  auto host = text.substr(0, colon);
  const auto digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    throw wrong("an IPv6 address belongs in brackets");
  if (host.empty()) throw wrong("there is no host");
  if (host.find_first_of("[] \t\r\n/") != std::string_view::npos) throw wrong("the host holds a wrong character");
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0)
    throw wrong("the port is a number from 1 to 65535");
  return {std::string(host), port};
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

}  // namespace multinode
