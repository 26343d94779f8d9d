// channel.hpp: the way from a node or a client to its head.
#pragma once

#include <multinode/endpoint.hpp>

#include <memory>

#include <grpcpp/channel.h>

namespace cluster {

// Does not connect yet. The host's name is looked up here and now, as all programs of this host look names up; gRPC's
// own way waits for a DNS server, where there is none, before it reads /etc/hosts.
std::shared_ptr<grpc::Channel> make_channel(const multinode::Endpoint& head);

}  // namespace cluster
