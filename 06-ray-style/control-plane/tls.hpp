// tls.hpp: TLS with one key for the whole cluster, in place of certificates that somebody would have to sign.
#pragma once

#include <multinode/launch/endpoint.hpp>

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>

namespace cluster {

constexpr int most_message_bytes = 4 << 20;

// A new private key and its self-signed certificate, PEM. Throws std::runtime_error.
std::string make_key();

// Both sides show the certificate and accept no other: a program that does not have the key can neither call the head
// nor pretend to be it, and nothing that is recorded on the network can be used again.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::string& key);

// Does not connect yet.
std::shared_ptr<grpc::Channel> make_channel(const multinode::Endpoint& head, const std::string& key);

}  // namespace cluster
