// torch_store.hpp: a client of the TCPStore that torchrun's agent serves on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/endpoint.hpp>
#include <multinode/net/socket.hpp>

namespace multinode {

// Speaks the TCPStore protocol of current PyTorch (its libuv server and the older one). In some places torch's clients
// put "/" before their keys (PrefixStore); this class sends keys unchanged.
class TorchStore {
 public:
  // Connects, with retries; throws StoreTimeout after `timeout`, which is also that of set(). All functions may throw
  // StoreTimeout and StoreLost; after either, the connection is of no more use.
  TorchStore(const Endpoint& server, std::chrono::milliseconds timeout);

  void set(const std::string& key, std::string_view value);
  std::string get(const std::string& key, std::chrono::milliseconds timeout);  // waits for the value

 private:
  std::chrono::milliseconds timeout_;
  TcpClient client_;
};

}  // namespace multinode
