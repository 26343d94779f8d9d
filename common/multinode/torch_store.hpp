// torch_store.hpp: a client of the TCPStore that torchrun's agent keeps on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE).
#pragma once

#include <multinode/tcp_store.hpp>

namespace multinode {

// Speaks the TCPStore protocol of current PyTorch (its libuv server and the older one). torch's clients put "/" before
// their keys in some places (PrefixStore); this class sends keys as given.
class TorchStore : public Store {
 public:
  // Connects, trying again until `timeout` has passed; then throws StoreTimeout.
  TorchStore(const Endpoint& server, std::chrono::milliseconds timeout);
  ~TorchStore() override;
  TorchStore(const TorchStore&) = delete;
  TorchStore& operator=(const TorchStore&) = delete;

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) override;
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) override;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace multinode
