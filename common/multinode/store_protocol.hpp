// store_protocol.hpp: the wire protocol of TcpStore and TcpStoreServer, described in tcp_store.cpp. Pure functions, for
// the fuzzer.
#pragma once

#include <multinode/store.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace multinode::protocol {

// Sent first by each side: a name and a version.
inline constexpr std::string_view hello{"mnstore\x01", 8};

inline constexpr std::size_t max_keys = 16 << 10;  // per wait: the server looks them up in one turn
// Enough for compare_set, which has two values.
inline constexpr std::size_t max_frame = 2 * Store::max_value + Store::max_key + 64;

enum class Operation : std::uint8_t { set = 1, get, add, wait, compare_set, will, goodbye };
enum class Status : std::uint8_t { done = 1, timed_out, refused };

// The other side violated the protocol.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Request {
  Operation operation{};
  std::vector<std::string> keys{};  // one; wait: any number; goodbye: none
  std::string value{};              // set, compare_set, will
  std::string expected{};           // compare_set
  std::int64_t amount = 0;          // add
  std::uint64_t timeout_ms = 0;     // get, wait
  bool operator==(const Request&) const = default;
};

struct Answer {
  Status status{};
  std::string body;  // done: the value; timed_out: the missing key; refused: the reason
};

// A complete frame.
std::string encode(const Request& request);
std::string encode(Status status, std::string_view body);
// A frame up to its body, which has `length` bytes.
std::string encode(Status status, std::size_t length);

// Parse a frame without its length field. Throw Violation if it is malformed.
Request parse_request(std::string_view frame);
Answer parse_answer(std::string_view frame);

// The length field in the first four bytes of a frame; throws Violation unless it is from 1 to max_frame.
std::size_t frame_length(std::string_view first_four);

// Splits a byte stream into frames. Its memory grows with the bytes appended, never with an announced length.
class FrameReader {
 public:
  void append(std::string_view bytes);
  // The next frame without its length field, valid until the next call; nullopt if it is incomplete. Throws Violation.
  std::optional<std::string_view> next();
  std::size_t capacity() const { return buffer_.capacity(); }

 private:
  std::string buffer_;
  std::size_t taken_ = 0;
};

}  // namespace multinode::protocol
