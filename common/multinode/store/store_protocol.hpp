// store_protocol.hpp: the wire protocol of TcpStore and TcpStoreServer, described in store_protocol.cpp. Pure
// functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/store/peer.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace multinode::protocol {

// Sent first by each side: a name and a version.
inline constexpr std::string_view magic{"mnstore\x05", 8};

inline constexpr std::size_t max_key = 4 << 10;  // bytes
inline constexpr std::size_t max_value = 1 << 20;
// Enough for compare_set, which has two values.
inline constexpr std::size_t max_frame = 2 * max_value + max_key + 64;
inline constexpr std::size_t max_hello = 8 << 10;  // a frame of a process that is not yet known
inline constexpr std::size_t nonce_bytes = 16;
inline constexpr std::int32_t max_ranks = 1 << 20;

enum class Operation : std::uint8_t { set = 1, get, add, compare_set, will, goodbye, hello, beat, fail };
// From verdict on: without a request.
enum class Status : std::uint8_t { done = 1, timed_out, refused, taken, verdict, notice, pulse };

// The other side violated the protocol.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The role of a process that connects.
struct Hello {
  std::string token{};     // of the run: it is not sent, but proved
  std::string attempt{};   // its name, which separates a run's attempts in a store that outlives them
  std::int32_t rank = -1;  // -1: a client that is not a rank: it has no heartbeat and gets no verdict
  std::int32_t world_size = 0;
  std::uint32_t timeout_ms = 0;  // the deadline of the rank's operations, for messages
  std::string where{};           // "host h, pid p"
  std::string node{};            // one rank per node prints the verdict
  std::string nonce{};           // what the server must answer with its own proof
  std::string proof{};           // that the client knows the token
  bool operator==(const Hello&) const = default;
};

// The operations of a rank are two sequences, because two threads may be inside an operation at the same time: those of
// its program and communicator, and the World's own.
enum class Lane : std::uint8_t { program, world };

// What a rank does, in the lane that has waited longest: its heartbeat.
struct Progress {
  enum class Wait : std::uint8_t { short_one, long_one, expired };
  std::uint64_t sequence = 0;     // grows by one at each begin and end of an operation
  std::uint64_t collectives = 0;  // entered so far in this lane
  std::int32_t peer = everyone;
  std::uint32_t waited_ms = 0;  // in this operation
  Wait wait = Wait::short_one;
  std::string name{};  // of the operation, or the last one
  Lane lane = Lane::program;
  std::uint64_t collectives_in_other_lane = 0;
  bool operator==(const Progress&) const = default;

  bool is_inside() const { return sequence % 2 == 1; }
  std::uint64_t collectives_in(Lane one) const { return one == lane ? collectives : collectives_in_other_lane; }
};

struct Request {
  Operation operation{};
  std::string key{};             // not from goodbye on
  std::string value{};           // set, compare_set, will; fail: the reason
  std::string expected{};        // compare_set
  std::int64_t amount = 0;       // add
  std::uint64_t timeout_ms = 0;  // get
  std::uint32_t readers = 0;     // set: the number of gets after which the key is deleted; 0: never
  std::uint8_t status = 0;       // fail: the exit status; beat: 1 if the server shall answer with a pulse
  Progress progress{};           // beat
  bool operator==(const Request&) const = default;
};

struct Answer {
  Status status{};
  std::string body;  // done: the value; timed_out: the missing key; refused, taken: the reason; notice: a line to print
};

// The body of a verdict.
struct Verdict {
  bool print = false;  // this rank prints it for its node
  std::uint8_t status = 1;
  std::string text{};
};

// A complete frame.
std::string encode(const Hello& hello);
std::string encode(const Request& request);
std::string encode(const Verdict& verdict);
std::string encode(Status status, std::string_view body);
// A frame up to its body, which has `length` bytes.
std::string encode(Status status, std::size_t length);

// Client and server prove to each other that they know the token; neither sends it. `challenge` is the server's nonce.
// The proof of a client covers its whole hello.
Hello proved(Hello hello, std::string_view challenge);
bool proves(const Hello& hello, std::string_view token, std::string_view challenge);
std::string proof_of_server(const Hello& hello, std::string_view token, std::string_view challenge);

// Parse a frame without its length field. Throw Violation if it is malformed.
Hello parse_hello(std::string_view frame);
Request parse_request(std::string_view frame);
Answer parse_answer(std::string_view frame);
Verdict parse_verdict(std::string_view body);

// The length field in the first four bytes of a frame; throws Violation unless it is from 1 to `max`.
std::size_t frame_length(std::string_view first_four, std::size_t max = max_frame);

// Splits a byte stream into frames. Its memory grows with the bytes appended, never with an announced length.
class FrameReader {
 public:
  void append(std::string_view bytes);
  // The next frame without its length field, valid until the next call; nullopt if it is incomplete. Throws Violation.
  std::optional<std::string_view> next(std::size_t max = max_frame);

 private:
  std::string buffer_;
  std::size_t taken_ = 0;
};

}  // namespace multinode::protocol
