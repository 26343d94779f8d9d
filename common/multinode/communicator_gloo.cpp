// Gloo's rendezvous, connections and framing, with algorithms of our own: on 2 cores its own all-reduce of 1 KiB among
// 4 ranks takes milliseconds, because its event loop spins while another thread holds a connection's lock. Here the
// connections are in Gloo's synchronous mode: the calling thread itself writes and, in the kernel, waits to read.
#include <multinode/communicator_backends.hpp>
#include <multinode/gloo_store.hpp>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace multinode {

namespace {

// Measured among 2 and 4 ranks of one host. With half a segment two ranks fall asleep over every second one, and need
// twice the time; so they do, for pages that no cache holds any more, with a larger buffer. This one is Linux's default
// limit, net.core.wmem_max, of which the kernel makes twice as much.
constexpr std::size_t segment = 131072;  // bytes of a message; the socket's own buffers hold one (see exchange)
constexpr std::size_t send_buffer = 212992;
constexpr std::size_t small = 16384;  // bytes up to which an all-reduce saves steps rather than bytes

// Gloo's errors name an address and a file of its own.
template <class Function>
void with_peer(int peer, Function&& function) try {
  function();
} catch (const gloo::Exception& e) {
  const std::string_view text = e.what();
  const std::size_t file = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  throw std::runtime_error("gloo, with rank " + std::to_string(peer) + ": " +
                           std::string(text.substr(file == std::string_view::npos ? 0 : file + 2)));
}

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(World& world);
  ~GlooCommunicator() override {
    stop();
    // The process ends next, and the World then says why. The others must not hear of it first by closed connections,
    // and name this rank for another reason: they stay open.
    if (unwinding()) static_cast<void>(new auto(context_));
  }
  Backend backend() const override { return Backend::gloo; }

 private:
  using Bytes = const std::byte*;

  // A direction of a connection has one slot: messages come in the order in which they were sent.
  static int slot(int from, int to) { return from < to ? 0 : 1; }
  gloo::transport::Pair& pair(int peer) { return *context_->getPair(peer); }
  std::unique_ptr<gloo::transport::Buffer> outgoing(int peer, const void* data, std::size_t bytes) {
    return pair(peer).createSendBuffer(slot(rank(), peer), const_cast<void*>(data), bytes);
  }
  std::unique_ptr<gloo::transport::Buffer> incoming(int peer, void* data, std::size_t bytes) {
    return pair(peer).createRecvBuffer(slot(peer, rank()), data, bytes);
  }

  // Sends to one rank what `out` holds, receives from another what `in` has room for; then calls arrived(offset, bytes)
  // for each piece, which lies at `in`, or, if `scratch`, in scratch_.
  template <class Arrived>
  void exchange(int to, Bytes out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes, bool scratch,
                Arrived&& arrived);
  void exchange(int to, Bytes out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes) {
    exchange(to, out, out_bytes, from, in, in_bytes, false, [](std::size_t, std::size_t) {});
  }
  void put(int to, const void* data, std::size_t bytes) {
    exchange(to, static_cast<Bytes>(data), bytes, Watchdog::everyone, nullptr, 0);
  }
  void take(int from, void* data, std::size_t bytes) {
    exchange(Watchdog::everyone, nullptr, 0, from, static_cast<std::byte*>(data), bytes);
  }

  void reduce_small(const Block& block, Reduction reduction);
  void reduce_large(const Block& block, Reduction reduction);

  void do_broadcast(const Block& block, int root) override;
  void do_all_reduce(const Block& block, Reduction reduction) override;
  void do_reduce_scatter(const ConstBlock& in, const Block& out, Reduction reduction) override;
  void do_all_gather(const ConstBlock& in, const Block& out) override;
  void do_send(const ConstBlock& block, int peer) override { put(peer, block.data, block.bytes()); }
  void do_recv(const Block& block, int peer) override { take(peer, block.data, block.bytes()); }
  void do_barrier() override {
    std::uint8_t nothing = 0;
    reduce_small({&nothing, 1, DataType::uint8}, Reduction::max);
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(segment);
};

GlooCommunicator::GlooCommunicator(World& world) : Communicator(world, Carrier::thread) {
  // A number of its own for each communicator keeps their keys apart. All ranks have counted when they know the
  // address.
  const auto number = (world.store().add("gloo communicators", 1) - 1) / size();
  gloo::transport::tcp::attr attributes;
  attributes.hostname = gloo_address(world);
  {
    const auto inside = world.watchdog().enter("connecting over gloo");
    // The watchdog, which can say who is late, ends the process before Gloo's own time-out does.
    const std::chrono::milliseconds timeout = world.timeout() + std::chrono::seconds(15);
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank(), size());
    context_->setTimeout(timeout);
    GlooStore store(world.store(), timeout);
    gloo::rendezvous::PrefixStore prefixed("communicator " + std::to_string(number), store);
    context_->connectFullMesh(prefixed, device);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) pair(r).setSync(true, false);
  }
  world.barrier("connected over gloo");  // no message before the last event loop has let go

  // Gloo makes a socket's send buffer as large as its largest message so far. One that holds but a few small messages
  // is soon full of what the peer has read and not acknowledged yet, which it may put off for 40 ms.
  std::vector<std::byte> out(send_buffer), in(send_buffer);
  const auto inside = world.watchdog().enter("first message over gloo");
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    const auto source = outgoing(to, out.data(), out.size());
    const auto target = incoming(from, in.data(), in.size());
    with_peer(to, [&] { source->send(); });
    with_peer(from, [&] { target->waitRecv(); });
  }
}

// Piece by piece, sending before receiving. It cannot lock up although all ranks do it at once, in a ring, say: when a
// rank writes its piece number n, the reader has taken those before n or is itself at work on an earlier one, so that
// only one piece at a time must fit into the socket's buffers.
template <class Arrived>
void GlooCommunicator::exchange(int to, Bytes out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes,
                                bool scratch, Arrived&& arrived) {
  const auto source = out_bytes ? outgoing(to, out, out_bytes) : nullptr;
  const auto target =
      in_bytes ? incoming(from, scratch ? scratch_.data() : in, scratch ? scratch_.size() : in_bytes) : nullptr;
  for (std::size_t at = 0; at < std::max(out_bytes, in_bytes); at += segment) {
    if (at < out_bytes) with_peer(to, [&] { source->send(at, std::min(segment, out_bytes - at), scratch ? 0 : at); });
    if (at < in_bytes) {
      with_peer(from, [&] { target->waitRecv(); });
      arrived(at, std::min(segment, in_bytes - at));
    }
  }
}

// A binomial tree, each piece passed on as it comes.
void GlooCommunicator::do_broadcast(const Block& block, int root) {
  const int me = (rank() - root + size()) % size();
  const auto at = [&](int place) { return (place + root) % size(); };
  const int top = me == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size()))) : me & -me;
  auto* data = static_cast<std::byte*>(block.data);
  for (std::size_t done = 0; done < block.bytes(); done += segment) {
    const std::size_t bytes = std::min(segment, block.bytes() - done);
    if (me != 0) take(at(me & (me - 1)), data + done, bytes);
    for (int bit = top / 2; bit > 0; bit /= 2)
      if (me + bit < size()) put(at(me + bit), data + done, bytes);
  }
}

// Recursive doubling: in each step two ranks swap what they have and combine it, in the same order of ranks, so that
// both, and in the end all, hold the same bits. Ranks beyond the greatest power of two hand in their part first.
void GlooCommunicator::reduce_small(const Block& block, Reduction reduction) {
  const int core = static_cast<int>(std::bit_floor(static_cast<unsigned>(size())));
  const std::size_t bytes = block.bytes();
  auto* data = static_cast<std::byte*>(block.data);
  if (rank() >= core) {
    put(rank() - core, data, bytes);
    take(rank() - core, data, bytes);
    return;
  }
  const auto with = [&](int lower_rank, int higher_rank) {
    const bool lower = rank() == lower_rank;
    const int peer = lower ? higher_rank : lower_rank;
    exchange(peer, data, peer < core ? bytes : 0, peer, data, bytes, true, [&](std::size_t at, std::size_t length) {
      std::byte* mine = data + at;
      combine(block.type, reduction, mine, lower ? mine : scratch_.data(), lower ? scratch_.data() : mine,
              length / size_of(block.type));
    });
  };
  if (rank() + core < size()) with(rank(), rank() + core);
  for (int bit = 1; bit < core; bit *= 2) with(rank() & ~bit, rank() | bit);
  if (rank() + core < size()) put(rank() + core, data, bytes);
}

// Each rank reduces one part, which the others send it, and then sends it to all: every bit is made in one place.
void GlooCommunicator::reduce_large(const Block& block, Reduction reduction) {
  const std::size_t size_of_one = size_of(block.type);
  const std::size_t ranks = static_cast<std::size_t>(size());
  auto* data = static_cast<std::byte*>(block.data);
  const auto begin = [&](int r) { return block.count * static_cast<std::size_t>(r) / ranks * size_of_one; };
  const auto length = [&](int r) { return begin(r + 1) - begin(r); };
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    exchange(to, data + begin(to), length(to), from, nullptr, length(rank()), true,
             [&](std::size_t at, std::size_t bytes) {
               std::byte* mine = data + begin(rank()) + at;
               combine(block.type, reduction, mine, mine, scratch_.data(), bytes / size_of_one);
             });
  }
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    exchange(to, data + begin(rank()), length(rank()), from, data + begin(from), length(from));
  }
}

void GlooCommunicator::do_all_reduce(const Block& block, Reduction reduction) {
  if (block.bytes() <= small)
    reduce_small(block, reduction);
  else
    reduce_large(block, reduction);
  if (reduction == Reduction::average) divide(block.type, block.data, block.count, size());
}

void GlooCommunicator::do_reduce_scatter(const ConstBlock& in, const Block& out, Reduction reduction) {
  const auto* data = static_cast<Bytes>(in.data);
  const auto part = [&](int r) { return data + static_cast<std::size_t>(r) * out.bytes(); };
  if (out.count) std::memcpy(out.data, part(rank()), out.bytes());
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    exchange(to, part(to), out.bytes(), from, nullptr, out.bytes(), true, [&](std::size_t at, std::size_t bytes) {
      std::byte* mine = static_cast<std::byte*>(out.data) + at;
      combine(out.type, reduction, mine, mine, scratch_.data(), bytes / size_of(out.type));
    });
  }
  if (reduction == Reduction::average) divide(out.type, out.data, out.count, size());
}

void GlooCommunicator::do_all_gather(const ConstBlock& in, const Block& out) {
  auto* data = static_cast<std::byte*>(out.data);
  const auto part = [&](int r) { return data + static_cast<std::size_t>(r) * in.bytes(); };
  if (in.count && in.data != part(rank())) std::memcpy(part(rank()), in.data, in.bytes());
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    exchange(to, part(rank()), in.bytes(), from, part(from), in.bytes());
  }
}

}  // namespace

std::unique_ptr<Communicator> make_gloo(World& world) { return std::make_unique<GlooCommunicator>(world); }

}  // namespace multinode
