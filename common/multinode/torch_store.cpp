// The part of the protocol of torch.distributed.TCPStore that is used here. Integers are little-endian, a string is its
// length (u64) and its bytes, a list its size (u64) and its strings. A connection begins with `validate` and a magic
// number. The server does not answer that, so a ping follows, which it echoes. Then queries: a byte and their
// arguments.
//   set: key, value                         no answer
//   compare_set: key, expected, desired     the value afterwards; `expected` if there is no such key
//   get: key                                the value
//   add: key, i64                           the sum, i64
//   append: key, value                      no answer
//   check: keys                             a byte: all keys exist, or not
//   wait: keys                              stop_waiting when all exist; timeouts are the client's
//   cancel_wait                             wait_canceled, perhaps after a stop_waiting in flight
// The server closes the connection on invalid queries.
#include <multinode/socket.hpp>
#include <multinode/torch_store.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>

namespace multinode {

using detail::Clock;
using std::chrono::milliseconds;

namespace {

enum class Query : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  append = 9,
  cancel_wait = 12,
  ping = 13
};
constexpr std::uint32_t validation_number = 0x3C85F7CE;
constexpr char ready = 0, not_ready = 1;             // answers to check
constexpr char stop_waiting = 0, wait_canceled = 1;  // answers to wait and cancel_wait
constexpr std::uint64_t longest_value = 8 << 20;     // the server's own limit
constexpr milliseconds answer_time(1'000);           // beyond the timeout of a get or wait

template <class Integer>
void put(std::string& to, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

class Message {
 public:
  explicit Message(Query query) { put(bytes_, static_cast<std::uint8_t>(query)); }
  template <class Integer>
  Message& number(Integer value) {
    put(bytes_, value);
    return *this;
  }
  Message& string(std::string_view text) {
    put(bytes_, std::uint64_t{text.size()});
    bytes_ += text;
    return *this;
  }
  Message& list(std::span<const std::string> texts) {
    put(bytes_, std::uint64_t{texts.size()});
    for (const auto& text : texts) string(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

template <class Integer>
Integer receive_number(detail::TcpClient& client, Clock::time_point deadline, std::string_view doing) {
  std::array<char, sizeof(Integer)> bytes{};
  client.receive(bytes.data(), bytes.size(), deadline, doing);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return static_cast<Integer>(value);
}

void greet_torch(detail::TcpClient& client, Clock::time_point deadline) {
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
  check_size(key, value);
  const auto doing = "setting " + detail::quoted(key);
  const auto deadline = detail::deadline_in(timeout_);
  client_.send(Message(Query::set).string(key).string(value).bytes(), deadline, doing);
  // A set has no answer. The answer to this check comes after it.
  if (!check({&key, 1}, deadline, doing)) client_.lose("it did not store the value, while " + doing);
}

std::string TorchStore::get(const std::string& key, milliseconds timeout) {
  wait({&key, 1}, timeout);
  return ask_string(Message(Query::get).string(key).bytes(), detail::deadline_in(answer_time),
                    "getting " + detail::quoted(key));
}

std::int64_t TorchStore::add(const std::string& key, std::int64_t amount) {
  check_size(key, {});
  const auto doing = "adding to " + detail::quoted(key);
  const auto deadline = detail::deadline_in(timeout_);
  client_.send(Message(Query::add).string(key).number(amount).bytes(), deadline, doing);
  return receive_number<std::int64_t>(client_, deadline, doing);
}

void TorchStore::wait(std::span<const std::string> keys, milliseconds timeout) {
  if (keys.empty()) return;
  for (const auto& key : keys) check_size(key, {});
  const auto doing = "waiting for " + detail::quoted(keys[0]);
  const auto deadline = detail::deadline_in(timeout);
  do {
    client_.send(Message(Query::wait).list(keys).bytes(), deadline + answer_time, doing);
    if (client_.poll_input(deadline, doing)) {
      if (receive_byte(doing) != stop_waiting) wrong(doing);
    } else {
      client_.send(Message(Query::cancel_wait).bytes(), deadline + answer_time, doing);
      auto answer = receive_byte(doing);
      if (answer == stop_waiting) answer = receive_byte(doing);  // just in time
      if (answer != wait_canceled) wrong(doing);
    }
    // The server also wakes waiters for a compare_set that did not set.
    if (check(keys, deadline + answer_time, doing)) return;
  } while (Clock::now() < deadline);
  const auto missing = std::find_if(keys.begin(), keys.end(), [&](const auto& key) {
    return !check({&key, 1}, detail::deadline_in(answer_time), doing);
  });
  throw StoreTimeout("no value for " + detail::quoted(missing == keys.end() ? keys[0] : *missing) + " in " +
                     client_.name() + " within " + detail::to_text(timeout));
}

std::string TorchStore::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  check_size(key, expected);
  check_size(key, desired);
  const auto doing = "compare-and-set of " + detail::quoted(key);
  const auto deadline = detail::deadline_in(timeout_);
  auto value =
      ask_string(Message(Query::compare_set).string(key).string(expected).string(desired).bytes(), deadline, doing);
  // For a missing key torch answers with the expected value. Nothing was set, and the contract of Store requires "".
  if (!expected.empty() && value == expected && (expected != desired || !check({&key, 1}, deadline, doing))) return {};
  // The older server does not wake waiting clients after a compare_set. Appending an empty value wakes them.
  if (value == desired) client_.send(Message(Query::append).string(key).string({}).bytes(), deadline, doing);
  return value;
}

bool TorchStore::check(std::span<const std::string> keys, Clock::time_point deadline, std::string_view doing) {
  client_.send(Message(Query::check).list(keys).bytes(), deadline, doing);
  char answer = 0;
  client_.receive(&answer, 1, deadline, doing);
  if (answer != ready && answer != not_ready) wrong(doing);
  return answer == ready;
}

std::string TorchStore::ask_string(std::string_view message, Clock::time_point deadline, std::string_view doing) {
  client_.send(message, deadline, doing);
  auto length = receive_number<std::uint64_t>(client_, deadline, doing);
  if (length > longest_value) wrong(doing);
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

char TorchStore::receive_byte(std::string_view doing) {
  char byte = 0;
  client_.receive(&byte, 1, detail::deadline_in(answer_time), doing);
  return byte;
}

void TorchStore::check_size(const std::string& key, std::string_view value) const {
  if (key.size() > max_key || value.size() > max_value)
    throw StoreRefused("a key of " + std::to_string(key.size()) + " bytes with a value of " +
                       std::to_string(value.size()) + " is too large for " + client_.name() + ": " +
                       detail::quoted(key));
}

void TorchStore::wrong(std::string_view doing) {
  client_.lose("its answer violates the protocol, while " + std::string(doing));
}

}  // namespace multinode
