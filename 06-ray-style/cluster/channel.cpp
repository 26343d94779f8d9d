#include "cluster/channel.hpp"

#include <multinode/socket.hpp>

#include <grpcpp/create_channel.h>

#include <netdb.h>

#include <array>
#include <string>

namespace cluster {

namespace {

constexpr int largest_message = 4 << 20;  // bytes

std::string target(const multinode::Endpoint& head) {
  std::string error;
  const multinode::detail::Addresses found = multinode::detail::resolve(head, 0, error);
  std::string text;
  for (const addrinfo* a = found.get(); a; a = a->ai_next) {
    std::array<char, NI_MAXHOST> address{};
    if (a->ai_family != found->ai_family ||
        getnameinfo(a->ai_addr, a->ai_addrlen, address.data(), address.size(), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    text += text.empty() ? (a->ai_family == AF_INET6 ? "ipv6:" : "ipv4:") : ",";
    text += to_string(multinode::Endpoint{address.data(), head.port});
  }
  return text.empty() ? to_string(head) : text;  // gRPC goes on trying a name that is unknown yet
}

}  // namespace

std::shared_ptr<grpc::Channel> make_channel(const multinode::Endpoint& head) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetMaxReceiveMessageSize(largest_message);
  arguments.SetMaxSendMessageSize(largest_message);
  return grpc::CreateCustomChannel(target(head), grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace cluster
