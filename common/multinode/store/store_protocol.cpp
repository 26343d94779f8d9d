// The wire protocol. Integers are little-endian; a string is its length (u32) and its bytes.
//   The client first sends `magic`: seven letters and the version. The server closes a connection at the first wrong
//   byte of it, and answers with `magic` and its challenge: 16 random bytes. Then the client sends its hello and
//   requests, and the server answers them in order. All are frames: the length of the rest (u32), a byte, a body.
//     hello: attempt, i32 rank, i32 world size, u32 timeout in ms, where, node, nonce (16 random bytes),
//            proof: HMAC-SHA-256 with the token over "client", the challenge, and the hello with an empty proof
//     answer to the hello, if it is `done`: HMAC-SHA-256 with the token over "server", the challenge, and the nonce
//     request: operation      set: key, value, u32 readers   compare_set: key, expected, desired
//                             get: key, u64 ms               add: key, i64
//                             will: key, value               goodbye: nothing
//                             beat: progress, u8             fail: u8 status, reason
//     answer: status          done: the value (get, compare_set, add: decimal), or nothing
//                             timed_out: the missing key
//                             refused, taken: the reason
//   get is answered when the value exists or the timeout has passed: clients do not poll. beat and fail have
//   no answer and are read even then. To ranks the server also sends, at any time:
//                             verdict: u8 print, u8 status, text     notice: a line to print     pulse: nothing
//   A client before its hello is called a stranger, after it a member. A stranger that does not prove that it knows the
//   token of the run is refused, and so is one with a rank that another process has. A client leaves a server that does
//   not prove it. After the hellos nothing is signed or encrypted: who can change packets on their way is not kept out.
//   The server puts the attempt of the hello and a slash before each key of a member.
// SPDX-License-Identifier: Apache-2.0
#include <multinode/store/hmac.hpp>
#include <multinode/store/store_protocol.hpp>

#include <utility>

namespace multinode::protocol {

namespace {

// A Writer and a Reader have the same functions, so that fields() describes each message once for both.
class Writer {
 public:
  template <class Integer>
  void number(Integer value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
  void string(const std::string& text, std::size_t /*longest*/) {
    number(static_cast<std::uint32_t>(text.size()));
    bytes += text;
  }

  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class Integer>
  void number(Integer& to) {
    std::uint64_t value = 0;
    const auto part = take(sizeof to);
    for (std::size_t i = 0; i < part.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(part[i])} << (8 * i);
    to = static_cast<Integer>(value);
  }
  void string(std::string& to, std::size_t longest) {
    std::uint32_t length = 0;
    number(length);
    if (length > longest) throw Violation("a string is longer than allowed");
    to = take(length);
  }
  void end() const {
    if (!bytes_.empty()) throw Violation("a frame is longer than its contents");
  }
  std::string_view rest() { return std::exchange(bytes_, {}); }

 private:
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw Violation("a frame is shorter than its contents");
    const auto part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }

  std::string_view bytes_;
};

template <class Stream, class AnyHello>
void fields_of_hello(Stream& stream, AnyHello& hello) {
  stream.string(hello.attempt, max_hello);
  stream.number(hello.rank);
  stream.number(hello.world_size);
  stream.number(hello.timeout_ms);
  stream.string(hello.where, max_hello);
  stream.string(hello.node, max_hello);
  stream.string(hello.nonce, nonce_bytes);
  stream.string(hello.proof, 32);
}

template <class Stream, class AnyRequest>
void fields_of_request(Stream& stream, AnyRequest& request) {
  const auto value = [&] { stream.string(request.value, max_value); };
  if (request.operation < Operation::goodbye) stream.string(request.key, max_key);
  switch (request.operation) {
    case Operation::set:
      value();
      return stream.number(request.readers);
    case Operation::will:
      return value();
    case Operation::get:
      return stream.number(request.timeout_ms);
    case Operation::add:
      return stream.number(request.amount);
    case Operation::compare_set:
      stream.string(request.expected, max_value);
      return value();
    case Operation::beat:
      stream.number(request.progress.sequence);
      stream.number(request.progress.collectives);
      stream.number(request.progress.peer);
      stream.number(request.progress.waited_ms);
      stream.number(request.progress.wait);
      stream.string(request.progress.name, max_key);
      stream.number(request.progress.lane);
      stream.number(request.progress.collectives_in_other_lane);
      return stream.number(request.status);
    case Operation::fail:
      stream.number(request.status);
      return stream.string(request.value, max_key);
    case Operation::goodbye:
      return;
    default:
      throw Violation("unknown operation");
  }
}

template <class Enum>
std::string framed(Enum first, std::string_view body) {
  Writer frame;
  frame.number(static_cast<std::uint32_t>(1 + body.size()));
  frame.number(first);
  return frame.bytes.append(body);
}

}  // namespace

std::string encode(const Request& request) {
  Writer body;
  fields_of_request(body, request);
  return framed(request.operation, body.bytes);
}

std::string encode(const Hello& hello) {
  Writer body;
  fields_of_hello(body, hello);
  return framed(Operation::hello, body.bytes);
}

std::string encode(const Verdict& verdict) {
  Writer body;
  body.number(verdict.print);
  body.number(verdict.status);
  return framed(Status::verdict, body.bytes + verdict.text);
}

std::string encode(Status status, std::string_view body) { return framed(status, body); }

std::string encode(Status status, std::size_t length) {
  Writer start;
  start.number(static_cast<std::uint32_t>(1 + length));
  start.number(status);
  return start.bytes;
}

namespace {
std::string proof_of_client(Hello hello, std::string_view token, std::string_view challenge) {
  hello.proof.clear();
  return hmac_sha256(token, "client" + std::string(challenge) + encode(hello));
}
}  // namespace

Hello proved(Hello hello, std::string_view challenge) {
  hello.nonce = random_bytes(nonce_bytes);
  hello.proof = proof_of_client(hello, hello.token, challenge);
  return hello;
}

bool proves(const Hello& hello, std::string_view token, std::string_view challenge) {
  return hello.nonce.size() == nonce_bytes &&
         equal_in_constant_time(hello.proof, proof_of_client(hello, token, challenge));
}

std::string proof_of_server(const Hello& hello, std::string_view token, std::string_view challenge) {
  return hmac_sha256(token, "server" + std::string(challenge) + hello.nonce);
}

Request parse_request(std::string_view frame) {
  Reader reader(frame);
  Request request;
  reader.number(request.operation);
  fields_of_request(reader, request);
  reader.end();
  if (request.progress.wait > Progress::Wait::expired || request.progress.lane > Lane::world)
    throw Violation("unknown kind of wait");
  return request;
}

Hello parse_hello(std::string_view frame) {
  Reader reader(frame);
  Operation operation{};
  reader.number(operation);
  if (operation != Operation::hello) throw Violation("a request before the hello");
  Hello hello;
  fields_of_hello(reader, hello);
  reader.end();
  if (hello.rank < -1 || hello.rank >= max_ranks || hello.world_size < 0 || hello.world_size > max_ranks)
    throw Violation("a wrong rank or world size");
  return hello;
}

Verdict parse_verdict(std::string_view body) {
  Reader reader(body);
  std::uint8_t print = 0;
  Verdict verdict;
  reader.number(print);
  reader.number(verdict.status);
  verdict.print = print != 0;
  verdict.text = reader.rest();
  return verdict;
}

Answer parse_answer(std::string_view frame) {
  Reader reader(frame);
  Answer answer;
  reader.number(answer.status);
  if (answer.status < Status::done || answer.status > Status::pulse) throw Violation("unknown status");
  answer.body = reader.rest();
  return answer;
}

std::size_t frame_length(std::string_view first_four, std::size_t max) {
  std::uint32_t length = 0;
  Reader(first_four).number(length);
  if (length == 0 || length > max) throw Violation("a frame has a wrong length");
  return length;
}

void FrameReader::append(std::string_view bytes) {
  buffer_.erase(0, std::exchange(taken_, 0));
  buffer_ += bytes;
}

std::optional<std::string_view> FrameReader::next(std::size_t max) {
  constexpr std::size_t kept = 4 << 10;  // by each idle connection
  const auto left = std::string_view(buffer_).substr(taken_);
  if (left.empty() && buffer_.capacity() > kept) {
    buffer_ = {};
    taken_ = 0;
  }
  if (left.size() < sizeof(std::uint32_t)) return {};
  const auto length = frame_length(left.substr(0, sizeof(std::uint32_t)), max);
  if (left.size() - sizeof(std::uint32_t) < length) return {};
  taken_ += sizeof(std::uint32_t) + length;
  return left.substr(sizeof(std::uint32_t), length);
}

}  // namespace multinode::protocol
