// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/text.hpp>
#include <multinode/store/hmac.hpp>
#include <multinode/store/tcp_store.hpp>

#include <array>

namespace multinode {

using protocol::Answer;
using protocol::Operation;
using protocol::Status;
using std::chrono::milliseconds;

namespace {

std::uint64_t count(milliseconds timeout) { return std::uint64_t(std::max(timeout, milliseconds(0)).count()); }

Answer receive_answer(TcpClient& client, Deadline& deadline, std::string_view doing) {
  try {
    std::array<char, sizeof(std::uint32_t)> length{};
    client.receive(length.data(), length.size(), deadline, doing);
    std::string frame(protocol::frame_length({length.data(), length.size()}), '\0');
    client.receive(frame.data(), frame.size(), deadline, doing);
    return protocol::parse_answer(frame);
  } catch (const protocol::Violation& violation) {
    client.lose("its answer violates the protocol: " + std::string(violation.what()));
  }
}

void shake_hands(TcpClient& client, const protocol::Hello& hello, Deadline& deadline) {
  client.send(protocol::magic, deadline, "saying hello");
  for (const char expected : protocol::magic) {
    char byte = 0;
    client.receive(&byte, 1, deadline, "waiting for its hello");
    if (byte != expected) client.lose("the server there is not this store, or has another version");
  }
  std::string challenge(protocol::nonce_bytes, '\0');
  client.receive(challenge.data(), challenge.size(), deadline, "waiting for its hello");
  const protocol::Hello own = protocol::proved(hello, challenge);
  client.send(protocol::encode(own), deadline, "saying hello");
  const auto [status, body] = receive_answer(client, deadline, "waiting for its hello");
  if (status == Status::taken) throw RankTaken(client.name() + " refuses this process: " + one_line(body));
  if (status != Status::done) throw StoreRefused(client.name() + " refuses this process: " + one_line(body));
  if (!equal_in_constant_time(body, protocol::proof_of_server(own, hello.token, challenge)))
    throw StoreRefused(client.name() +
                       " does not know the secret of this run, so it is not this run's: another process listens there");
}

}  // namespace

std::string random_token() { return to_hex(random_bytes(16)); }

TcpStore::TcpStore(const Endpoint& server, milliseconds timeout, const protocol::Hello& hello,
                   std::optional<milliseconds> to_connect)
    : prefix_(hello.attempt.empty() ? "" : hello.attempt + "/"),
      timeout_(timeout),
      client_(server, to_connect.value_or(timeout),
              [&](TcpClient& client, Deadline& deadline) { shake_hands(client, hello, deadline); }) {}

void TcpStore::set_for_readers(const std::string& key, std::string_view value, std::uint32_t readers) {
  call({.operation = Operation::set, .key = key, .value = std::string(value), .readers = readers}, timeout_, "setting");
}

std::string TcpStore::get(const std::string& key, milliseconds timeout) {
  return call({.operation = Operation::get, .key = key, .timeout_ms = count(timeout)}, timeout, "getting");
}

std::int64_t TcpStore::add(const std::string& key, std::int64_t amount) {
  const auto text = call({.operation = Operation::add, .key = key, .amount = amount}, timeout_, "adding to");
  const auto sum = number_of<std::int64_t>(text);
  if (!sum) client_.lose("its answer violates the protocol: the sum is not a number");
  return *sum;
}

std::string TcpStore::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  return call({Operation::compare_set, key, std::string(desired), std::string(expected)}, timeout_,
              "compare-and-set of");
}

void TcpStore::set_on_disconnect(const std::string& key, std::string_view value) {
  call({Operation::will, key, std::string(value)}, timeout_, "leaving a will at");
}

void TcpStore::goodbye() {
  call({.operation = Operation::goodbye}, timeout_, "saying goodbye to");
  if (!receiving_elsewhere_) client_.close();  // else the thread that receives uses it
}

std::string TcpStore::call(protocol::Request request, milliseconds timeout, std::string_view verb) {
  const bool goodbye = request.operation == Operation::goodbye;
  const std::string key = prefix_ + request.key;
  const std::string doing = std::string(verb) + " " + (goodbye ? client_.name() : in_quotes(key));
  if (key.size() > protocol::max_key)
    throw StoreRefused("a key of " + std::to_string(key.size()) + " bytes is too long for " + client_.name() + ": " +
                       in_quotes(key));
  if (const auto size = std::max(request.value.size(), request.expected.size()); size > protocol::max_value)
    throw StoreRefused("a value of " + std::to_string(size) + " bytes is too long for " + client_.name() + ", while " +
                       doing);
  const auto frame = protocol::encode(request);

  // A server that is late with its answer by as much as it may take to connect to it counts as silent.
  Deadline deadline(request.operation == Operation::get
                        ? std::min(timeout, milliseconds::max() / 2) + std::min(timeout_, milliseconds::max() / 2)
                        : timeout);
  const std::lock_guard calling(calling_);
  if (unanswered_ && !goodbye) throw StoreLost(client_.name() + " did not answer an earlier request");
  {
    const std::lock_guard sending(sending_);
    client_.send(frame, deadline, doing);
  }
  const auto answer = receiving_elsewhere_ ? await(deadline, doing) : receive(deadline, doing);
  switch (answer.status) {
    case Status::done:
      return answer.body;
    case Status::timed_out:
      throw StoreTimeout("no value for " + in_quotes(answer.body) + " in " + client_.name() + " within " +
                         to_text(timeout));
    case Status::refused:
      throw StoreRefused(client_.name() + " refuses, while " + doing + ": " + one_line(answer.body));
    default:
      break;
  }
  client_.lose("its answer violates the protocol");
}

Answer TcpStore::receive(Deadline& deadline, std::string_view doing) {
  while (true)
    if (auto answer = receive_answer(client_, deadline, doing); answer.status < Status::verdict) return answer;
}

// The answer that receive_event() receives. After a timeout there are no more calls: the late answer would be taken for
// that of the next request.
Answer TcpStore::await(Deadline& deadline, std::string_view doing) {
  std::unique_lock lock(mutex_);
  while (!answered_.wait_for(lock, deadline.left(), [&] { return answer_ || !lost_.empty(); })) {
    if (!deadline.passed()) continue;
    unanswered_ = true;
    throw StoreTimeout(client_.name() + " does not answer, while " + std::string(doing));
  }
  if (!answer_) throw StoreLost(lost_);
  return *std::exchange(answer_, {});
}

std::optional<Answer> TcpStore::receive_event(milliseconds limit) {
  try {
    Deadline wait(limit), deadline(timeout_);
    if (!client_.poll_input(wait, "waiting for a verdict")) return {};
    auto answer = receive_answer(client_, deadline, "waiting for a verdict");
    if (answer.status >= Status::verdict) return answer;
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    answered_.notify_one();
    return {};
  } catch (const std::runtime_error& error) {
    const std::lock_guard lock(mutex_);
    if (lost_.empty()) lost_ = error.what();
    answered_.notify_one();
    throw;
  }
}

bool TcpStore::send_status(const protocol::Request& request, bool urgent) {
  std::unique_lock sending(sending_, std::defer_lock);
  if (urgent)
    sending.lock();
  else if (!sending.try_lock())
    return false;
  Deadline deadline(timeout_);
  client_.send(protocol::encode(request), deadline, "telling it how this rank is");
  return true;
}

}  // namespace multinode
