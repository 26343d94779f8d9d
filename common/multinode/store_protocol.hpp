// store_protocol.hpp: the bytes between TcpStore and TcpStoreServer, described in tcp_store.cpp. Pure functions: the
// fuzzer calls them.
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

// Sent first by either side: a name and a version.
inline constexpr std::string_view hello{"mnstore\x01", 8};

inline constexpr std::size_t max_keys = 16 << 10;  // of a wait: what the server looks up in one turn
// compare_set has two values.
inline constexpr std::size_t max_frame = 2 * Store::max_value + Store::max_key + 64;

enum class Operation : std::uint8_t { set = 1, get, add, wait, compare_set, will, goodbye };
enum class Status : std::uint8_t { done = 1, timed_out, refused };

// The other side broke the protocol.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Request {
  Operation operation{};
  std::vector<std::string> keys{};  // one but for wait and goodbye
  std::string value{};              // set, compare_set, will
  std::string expected{};           // compare_set
  std::int64_t amount = 0;          // add
  std::uint64_t timeout_ms = 0;     // get, wait
  bool operator==(const Request&) const = default;
};

struct Answer {
  Status status{};
  std::string body;  // the value; the missing key; why it was refused
};

// A whole frame.
std::string encode(const Request& request);
std::string encode(Status status, std::string_view body);
// All of it but its body, of that length.
std::string encode(Status status, std::size_t length);

// What a frame holds, without its length. Throw Violation for anything else.
Request parse_request(std::string_view frame);
Answer parse_answer(std::string_view frame);

// The length in the first four bytes of a frame; throws Violation for one that is no frame's.
std::size_t frame_length(std::string_view first_four);

// Cuts a stream of bytes into frames. What it keeps is what was appended, never what a length promises.
class FrameReader {
 public:
  void append(std::string_view bytes);
  // The next frame, without its length, valid until the next call; none where it is not complete yet. Throws Violation.
  std::optional<std::string_view> next();
  std::size_t capacity() const { return buffer_.capacity(); }

 private:
  std::string buffer_;
  std::size_t taken_ = 0;
};

}  // namespace multinode::protocol
