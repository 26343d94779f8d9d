// store.hpp: the meeting place, a small key-value store for what has to be exchanged before a
// collective can run, and for what must be said when a collective cannot end any more.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace multinode {

// No value came before the deadline. what() names the key and the store.
class StoreTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The store can no longer be reached, or it answered against its protocol.
class StoreLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The store is there and will not do that: a key or a value too large (max_key, max_value), no room left, text where
// add() wants a number.
class StoreRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Keys and values are byte strings. A Store is a connection: one thread at a time may use it.
class Store {
 public:
  static constexpr std::size_t max_key = 4 << 10;  // bytes
  static constexpr std::size_t max_value = 1 << 20;

  virtual ~Store() = default;
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual void set(const std::string& key, std::string_view value) = 0;

  // The value, waiting for it until `timeout` has passed; then throws StoreTimeout.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;

  // Adds to the decimal integer at `key` (absent: 0) and returns the sum; atomic over all clients.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // Returns when every key has a value; throws StoreTimeout, naming a missing one, otherwise.
  virtual void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) = 0;

  // Sets `key` to `desired` if its value is `expected` ("" also stands for: absent), atomically.
  // Returns the value that the key has afterwards: `desired` if this call won.
  virtual std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) = 0;
};

}  // namespace multinode
