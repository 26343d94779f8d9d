// channel.hpp: messages from one process to another, in order, as keys of the head's store: NAME/0, NAME/1 ... The
// store wakes a reader that waits for the next key, checks the token, and knows when a writer's connection closes.
#pragma once

#include <multinode/base/text.hpp>
#include <multinode/store/tcp_store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace cluster {

// The last message of a writer that calls send_with_will() and dies: the store sends it.
inline constexpr std::string_view gone = "gone";
inline constexpr std::int64_t window = 16;  // messages of a channel that acknowledges

// For one thread. The functions throw what TcpStore's do.
class Sender {
 public:
  Sender(multinode::TcpStore& store, std::string name) : store_(&store), name_(std::move(name)) {}
  void send(std::string_view message) { store_->set_for_readers(name_ + "/" + std::to_string(next_++), message, 1); }
  void send_with_will(std::string_view message) {
    store_->set_on_disconnect(name_ + "/" + std::to_string(next_ + 1), gone);
    send(message);
  }
  // The reader, which must acknowledge, is `window` messages behind.
  bool full() {
    if (next_ - read_ < window) return false;
    try {
      read_ = multinode::parse_decimal<std::int64_t>(store_->get(name_ + "/read", {})).value_or(0);
    } catch (const multinode::StoreTimeout&) {  // nothing has been read yet
    }
    return next_ - read_ >= window;
  }

 private:
  multinode::TcpStore* store_;
  std::string name_;
  std::int64_t next_ = 0, read_ = 0;
};

// For one thread.
class Receiver {
 public:
  Receiver(multinode::TcpStore& store, std::string name, bool acknowledges = false)
      : store_(&store), name_(std::move(name)), acknowledges_(acknowledges) {}
  // The next message; nullopt after `limit`.
  std::optional<std::string> receive(std::chrono::milliseconds limit) try {
    std::string message = store_->get(name_ + "/" + std::to_string(next_), limit);
    ++next_;
    if (acknowledges_) store_->set(name_ + "/read", std::to_string(next_));
    return message;
  } catch (const multinode::StoreTimeout&) {
    return {};
  }

 private:
  multinode::TcpStore* store_;
  std::string name_;
  bool acknowledges_;
  std::int64_t next_ = 0;
};

// Deletes what a dead reader, which acknowledged, has left unread.
inline void drain(multinode::TcpStore& store, const std::string& name) try {
  for (auto next = multinode::parse_decimal<std::int64_t>(store.get(name + "/read", {})).value_or(0);; ++next)
    store.get(name + "/" + std::to_string(next), {});
} catch (const multinode::StoreTimeout&) {
}

// Takes the next number of `kind`, "node" or "job", for a process whose channels are then KIND/NUMBER/from and
// KIND/NUMBER/to. The head waits at one number after the other, so a process that dies here keeps no other one out.
inline std::int64_t take_number(multinode::TcpStore& store, const std::string& kind,
                                std::chrono::milliseconds timeout) {
  const std::string own = multinode::random_token();
  for (multinode::Deadline deadline(timeout); !deadline.passed();) {
    const std::string next = store.get(kind + "/next", timeout);
    if (store.compare_set(kind + "/" + next, "", own) == own)
      return multinode::parse_decimal<std::int64_t>(next).value();
  }
  throw multinode::StoreTimeout("the head does not take new " + kind + "s");
}

}  // namespace cluster
