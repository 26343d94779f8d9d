// torch_store.hpp: a client of the TCPStore that torchrun's agent serves on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE).
#pragma once

#include <multinode/endpoint.hpp>
#include <multinode/socket.hpp>
#include <multinode/store.hpp>

namespace multinode {

// Speaks the TCPStore protocol of current PyTorch (its libuv server and the older one). In some places torch's clients
// put "/" before their keys (PrefixStore); this class sends keys unchanged.
class TorchStore : public Store {
 public:
  // Connects, with retries; throws StoreTimeout after `timeout`, which is also the timeout of the functions that have
  // none of their own.
  TorchStore(const Endpoint& server, std::chrono::milliseconds timeout);

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) override;
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) override;

 private:
  bool check(std::span<const std::string> keys, detail::Clock::time_point deadline, std::string_view doing);
  std::string ask_string(std::string_view message, detail::Clock::time_point deadline, std::string_view doing);
  char receive_byte(std::string_view doing);
  void check_size(const std::string& key, std::string_view value) const;
  [[noreturn]] void wrong(std::string_view doing);

  std::chrono::milliseconds timeout_;
  detail::TcpClient client_;
};

}  // namespace multinode
