// The part of the protocol of torch.distributed.TCPStore that is used here. Integers are little-endian, a string is its
// length (u64) and its bytes, a list its size (u64) and its strings. A connection begins with `validate` and a magic
// number. The server does not answer that, so a ping follows, which it echoes. Then queries: a byte and their
// arguments. The server closes the connection on invalid queries.
//   set: key, value     no answer
//   get: key            the value
//   wait: keys          stop_waiting when all exist; timeouts are the client's
// SPDX-License-Identifier: Apache-2.0
#include <multinode/net/socket.hpp>
#include <multinode/store/torch_store.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>

namespace multinode {

using std::chrono::milliseconds;

namespace {

enum class Query : std::uint8_t { validate = 0, set = 1, get = 3, wait = 6, ping = 13 };
constexpr std::uint32_t validation_number = 0x3C85F7CE;
constexpr char stop_waiting = 0;                  // the answer to wait
constexpr std::uint64_t longest_value = 8 << 20;  // the server's own limit

class Message {
 public:
  explicit Message(Query query) { number(static_cast<std::uint8_t>(query)); }
  template <class Integer>
  Message& number(Integer value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
    return *this;
  }
  Message& string(std::string_view text) {
    number(std::uint64_t{text.size()});
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

template <class Integer>
Integer receive_number(TcpClient& client, Deadline& deadline, std::string_view doing) {
  std::array<char, sizeof(Integer)> bytes{};
  client.receive(bytes.data(), bytes.size(), deadline, doing);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return static_cast<Integer>(value);
}

void greet_torch(TcpClient& client, Deadline& deadline) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  const auto hello =
      Message(Query::validate).number(validation_number).bytes() + Message(Query::ping).number(nonce).bytes();
  client.send(hello, deadline, "saying hello");
  if (receive_number<std::uint32_t>(client, deadline, "waiting for its echo") != nonce)
    client.lose("the server there is not torch's TCPStore");
}

}  // namespace

TorchStore::TorchStore(const Endpoint& server, milliseconds timeout)
    : timeout_(timeout), client_(server, timeout, greet_torch) {}

void TorchStore::set(const std::string& key, std::string_view value) {
  Deadline deadline(timeout_);
  client_.send(Message(Query::set).string(key).string(value).bytes(), deadline, "setting " + key);
  get(key, timeout_);  // a set has no answer
}

std::string TorchStore::get(const std::string& key, milliseconds timeout) {
  const auto doing = "waiting for " + in_quotes(key);
  Deadline deadline(timeout);
  client_.send(Message(Query::wait).number(std::uint64_t{1}).string(key).bytes(), deadline, doing);
  char answer = 0;
  client_.receive(&answer, 1, deadline, doing);
  client_.send(Message(Query::get).string(key).bytes(), deadline, doing);  // not earlier: the server would answer it
  auto length = answer == stop_waiting ? receive_number<std::uint64_t>(client_, deadline, doing) : longest_value + 1;
  if (length > longest_value) client_.lose("its answer violates the protocol, while " + doing);
  // In pieces: memory grows with the bytes received, not with the announced length.
  std::string value;
  while (length > 0) {
    const auto part = std::min<std::uint64_t>(length, 64 << 10);
    const auto before = value.size();
    value.resize(before + part);
    client_.receive(value.data() + before, part, deadline, doing);
    length -= part;
  }
  return value;
}

}  // namespace multinode
