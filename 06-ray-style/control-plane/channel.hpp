// channel.hpp: messages from one process to another, in order, as keys of a store: NAME/0, NAME/1 ... The store wakes
// the reader, deletes what was read, and sends a last message for a writer that dies.
#pragma once

#include <multinode/store/tcp_store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace cluster {

inline constexpr std::string_view gone = "gone";  // the last message of a writer with a will, when it dies

// For one thread. The functions throw what TcpStore's do.
class Sender {
 public:
  Sender(multinode::TcpStore& store, std::string name) : store_(&store), name_(std::move(name)) {}
  void send(std::string_view message) { store_->set_for_readers(name_ + "/" + std::to_string(next_++), message, 1); }
  void send_with_will(std::string_view message) {
    store_->set_on_disconnect(name_ + "/" + std::to_string(next_ + 1), gone);
    send(message);
  }
  // Returns when the reader, which must acknowledge, has it.
  void send_and_wait(std::string_view message) {
    send(message);
    store_->get(name_ + "/read", std::chrono::hours(24 * 365));
  }

 private:
  multinode::TcpStore* store_;
  std::string name_;
  std::int64_t next_ = 0;
};

// For one thread.
class Receiver {
 public:
  Receiver(multinode::TcpStore& store, std::string name) : store_(&store), name_(std::move(name)) {}
  // The next message; nullopt after `limit`.
  std::optional<std::string> receive(std::chrono::milliseconds limit = {}) try {
    std::string message = store_->get(name_ + "/" + std::to_string(next_), limit);
    ++next_;
    return message;
  } catch (const multinode::StoreTimeout&) {
    return {};
  }
  void acknowledge() { store_->set_for_readers(name_ + "/read", "", 1); }

 private:
  multinode::TcpStore* store_;
  std::string name_;
  std::int64_t next_ = 0;
};

}  // namespace cluster
