#include "member.hpp"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

namespace live {

std::string verdict_key(std::uint64_t generation) { return "verdict/" + std::to_string(generation); }
std::string address_key(std::uint64_t generation, int rank) {
  return "addresses/" + std::to_string(generation) + "/" + std::to_string(rank);
}
std::string look(multinode::TcpStore& store, const std::string& key) {
  constexpr char never[] = "?";  // no value is that, so nothing is set
  return store.compare_set(key, never, never);
}

// One connection with each other rank, over Gloo. They close with the object: that is how the others hear of a death.
class Member::Connections {
 public:
  Connections(int rank, int size, std::chrono::milliseconds timeout) : rank_(rank), size_(size) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    context_ = device_->createContext(rank, size);
    context_->setTimeout(timeout);
    for (int r = 0; r < size; ++r)
      if (r != rank) context_->createPair(r);
  }

  // Where each of the other ranks reaches this one, in order of rank and all of the same size.
  std::string addresses() {
    std::string all;
    for (int r = 0; r < size_; ++r)
      if (r != rank_) {
        const std::vector<char> bytes = context_->getPair(r)->address().bytes();
        all.append(bytes.begin(), bytes.end());
      }
    return all;
  }
  // `others`: the addresses() of rank r.
  void connect(int r, const std::string& others) {
    const std::size_t length = others.size() / static_cast<std::size_t>(size_ - 1);
    const auto place = static_cast<std::size_t>(rank_ < r ? rank_ : rank_ - 1);
    const std::string address = others.substr(place * length, length);
    context_->getPair(r)->connect({address.begin(), address.end()});
  }

  void send(int to, const void* data, std::size_t bytes) {
    if (bytes == 0) return;
    sending_.push_back(context_->createUnboundBuffer(const_cast<void*>(data), bytes));
    sending_.back()->send(to, slot);
  }
  void receive(int from, void* data, std::size_t bytes) {
    if (bytes == 0) return;
    receiving_.push_back(context_->createUnboundBuffer(data, bytes));
    receiving_.back()->recv(from, slot);
  }
  void wait() {
    for (; !receiving_.empty(); receiving_.pop_front())
      if (!receiving_.front()->waitRecv()) throw PeerLost("a receive was aborted");
    for (; !sending_.empty(); sending_.pop_front())
      if (!sending_.front()->waitSend()) throw PeerLost("a send was aborted");
  }

 private:
  static constexpr std::uint64_t slot = 0;  // messages arrive in the order in which they were sent
  int rank_, size_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::deque<std::unique_ptr<gloo::transport::UnboundBuffer>> sending_, receiving_;
};

namespace {

template <class Function>
void or_lost(Function&& function) try {
  function();
} catch (const gloo::Exception& error) {
  throw PeerLost(error.what());
}

}  // namespace

Member::Member(int rank, int size, const multinode::Endpoint& store, const std::string& token,
               std::chrono::milliseconds timeout)
    : rank_(rank), size_(size), timeout_(timeout), store_(store, timeout, {.token = token}) {}
Member::~Member() = default;

bool Member::join() {
  for (;; leave()) {
    while (look(store_, verdict_key(generation_)) == "over") ++generation_;
    if (!look(store_, "finished").empty()) return false;
    connections_ = std::make_unique<Connections>(rank_, size_, timeout_);
    store_.set(address_key(generation_, rank_), connections_->addresses());
    if (store_.add("arrived/" + std::to_string(generation_), 1) == size_)
      store_.compare_set(verdict_key(generation_), "", "go");
    // The supervisor ends a generation in which a rank does not arrive within the deadline.
    if (store_.get(verdict_key(generation_), 4 * timeout_) != "go") continue;
    try {
      for (int r = 0; r < size_; ++r)
        if (r != rank_) connections_->connect(r, store_.get(address_key(generation_, r), timeout_));
      return true;
    } catch (const gloo::Exception&) {  // one has died since
    }
  }
}

void Member::leave() {
  store_.set(verdict_key(generation_++), "over");
  connections_.reset();
}

// Each rank adds up one part for all.
void Member::all_reduce(const multinode::Block& block) {
  const std::size_t element = multinode::size_of(block.type), ranks = static_cast<std::size_t>(size_);
  auto* const data = static_cast<std::byte*>(block.data);
  const auto begin = [&](int r) { return block.count * static_cast<std::size_t>(r) / ranks * element; };
  const auto length = [&](int r) { return begin(r + 1) - begin(r); };
  const std::size_t bytes = length(rank_);
  parts_.resize(std::max(parts_.size(), ranks * bytes));  // this rank's, of all ranks
  const auto part_of = [&](int r) { return parts_.data() + static_cast<std::size_t>(r) * bytes; };
  or_lost([&] {
    if (bytes > 0) std::memcpy(part_of(rank_), data + begin(rank_), bytes);
    for (int r = 0; r < size_; ++r)
      if (r != rank_) {
        connections_->receive(r, part_of(r), bytes);
        connections_->send(r, data + begin(r), length(r));
      }
    connections_->wait();
    for (int r = 1; r < size_; ++r)
      multinode::combine(block.type, multinode::Reduction::sum, part_of(0), part_of(0), part_of(r), bytes / element);
    if (bytes > 0) std::memcpy(data + begin(rank_), part_of(0), bytes);
    for (int r = 0; r < size_; ++r)
      if (r != rank_) {
        connections_->receive(r, data + begin(r), length(r));
        connections_->send(r, data + begin(rank_), bytes);
      }
    connections_->wait();
  });
}

void Member::broadcast(const multinode::Block& block, int root) {
  or_lost([&] {
    if (rank_ != root) connections_->receive(root, block.data, block.bytes());
    for (int r = 0; r < size_; ++r)
      if (rank_ == root && r != root) connections_->send(r, block.data, block.bytes());
    connections_->wait();
  });
}

void Member::finish(const std::string& result) {
  store_.compare_set("finished", "", result);
  std::uint64_t next = generation_ + 1;
  while (look(store_, verdict_key(next)) == "over") ++next;
  store_.set(verdict_key(next), "over");
}

}  // namespace live
