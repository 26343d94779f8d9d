// store.hpp: the rendezvous: a small key-value store for what ranks must exchange before a collective can run, and for
// errors that they must report when a collective cannot complete.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace multinode {

// The deadline passed without a value. what() names the key and the store.
class StoreTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The store can no longer be reached, or its answer violates the protocol.
class StoreLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The store rejected the request: the key or the value is too large (max_key, max_value), the store is full, or the
// value is not a number for add().
class StoreRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Keys and values are byte strings. A Store is a connection: one thread at a time may use it. All functions may throw
// StoreTimeout, StoreLost and StoreRefused.
class Store {
 public:
  static constexpr std::size_t max_key = 4 << 10;  // bytes
  static constexpr std::size_t max_value = 1 << 20;

  virtual ~Store() = default;
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual void set(const std::string& key, std::string_view value) = 0;

  // Waits for the value and returns it; throws StoreTimeout after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;

  // Atomically adds to the decimal integer at `key` (absent: 0) and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // Returns when every key has a value; after `timeout` throws StoreTimeout, which names a missing one.
  virtual void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) = 0;

  // Sets `key` to `desired` if its value is `expected` ("" also stands for: absent), atomically.
  // Returns the value that the key has afterwards: `desired` if this call won.
  virtual std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) = 0;
};

}  // namespace multinode
