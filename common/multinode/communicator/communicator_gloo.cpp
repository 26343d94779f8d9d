// Gloo's rendezvous, connections and framing, with our own algorithms: on 2 cores Gloo's all-reduce of 1 KiB among 4
// ranks takes milliseconds, because its event loop spins while another thread holds a connection's lock. Here the
// connections are in Gloo's synchronous mode: the calling thread itself writes, and waits in the kernel to read.
// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/text.hpp>
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/gloo_store.hpp>
#include <multinode/communicator/host_communicator.hpp>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <ranges>
#include <vector>

namespace multinode {

namespace {

// Measured with 2 and 4 ranks on one host. With half a segment two ranks sleep at every second segment and take twice
// the time. A larger buffer also doubles the time, because its pages drop out of the cache. This one is Linux's default
// limit, net.core.wmem_max, which the kernel doubles. Where a host has a lower limit, both are smaller on all ranks.
constexpr std::size_t largest_segment = 131072;  // bytes per message; the socket's buffers hold one (see exchange)
constexpr std::size_t largest_send_buffer = 212992;
constexpr std::size_t small = 16384;  // bytes up to which an all-reduce saves steps rather than bytes

std::size_t send_buffer_of_this_host() {
  std::size_t limit = largest_send_buffer;
  std::ifstream("/proc/sys/net/core/wmem_max") >> limit;  // not there: as by default
  return std::min(limit ? limit : largest_send_buffer, largest_send_buffer);
}

// Adds the peer's rank to Gloo's errors, which name only an address and a source file of Gloo.
template <class Function>
void with_peer(int peer, Function&& function) try {
  function();
} catch (const gloo::Exception& e) {
  const std::string_view text = e.what();
  const std::size_t file = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  throw std::runtime_error("gloo, with rank " + std::to_string(peer) + ": " +
                           std::string(text.substr(file == std::string_view::npos ? 0 : file + 2)));
}

class GlooCommunicator : public HostCommunicator {
 public:
  explicit GlooCommunicator(World& world);
  ~GlooCommunicator() override {
    stop();
    // The process ends next, and the World then reports why. If the connections closed first, the other ranks would
    // report a lost connection instead. So leave them open.
    if (unwinding()) static_cast<void>(new auto(context_));
  }
  Backend backend() const override { return Backend::gloo; }

 private:
  using Bytes = const std::byte*;

  // One slot per direction of a connection: messages arrive in the order in which they were sent.
  static int slot(int from, int to) { return from < to ? 0 : 1; }
  gloo::transport::Pair& pair(int peer) { return *context_->getPair(peer); }
  std::unique_ptr<gloo::transport::Buffer> outgoing(int peer, const void* data, std::size_t bytes) {
    return pair(peer).createSendBuffer(slot(rank(), peer), const_cast<void*>(data), bytes);
  }
  std::unique_ptr<gloo::transport::Buffer> incoming(int peer, void* data, std::size_t bytes) {
    return pair(peer).createRecvBuffer(slot(peer, rank()), data, bytes);
  }

  // Sends `out` to one rank and receives `in` from another, piece by piece. Calls arrived(offset, bytes) for each
  // received piece, which is at in + offset, or, if `scratch`, in scratch_.
  template <class Arrived>
  void exchange(int to, Bytes out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes, bool scratch,
                Arrived&& arrived);
  void exchange(int to, Bytes out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes) {
    exchange(to, out, out_bytes, from, in, in_bytes, false, [](std::size_t, std::size_t) {});
  }
  void put(int to, const void* data, std::size_t bytes) {
    exchange(to, static_cast<Bytes>(data), bytes, to, nullptr, 0);
  }
  void take(int from, void* data, std::size_t bytes) {
    exchange(from, nullptr, 0, from, static_cast<std::byte*>(data), bytes);
  }

  void reduce_small(const Block& block, Reduction reduction);
  void reduce_large(const Block& block, Reduction reduction);

  void do_broadcast(const Block& block, int root) override;
  void do_all_reduce(const Block& block, Reduction reduction) override;
  void do_barrier() override {
    std::uint8_t nothing = 0;
    reduce_small({&nothing, 1, DataType::uint8}, Reduction::max);
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::size_t segment_ = largest_segment;
  std::vector<std::byte> scratch_;
};

GlooCommunicator::GlooCommunicator(World& world) : HostCommunicator(world) {
  // Each communicator has a number, which separates their keys. All ranks have added theirs when gloo_address()
  // returns.
  const auto number = (world.store().add("gloo communicators", 1) - 1) / size();
  gloo::transport::tcp::attr attributes;
  attributes.hostname = gloo_address(world);
  {
    const auto inside = world.watchdog().enter("connecting over gloo");
    // The watchdog, which can name the late rank, ends the process before Gloo's own timeout.
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
  // No message before all connections have left their event loops.
  const std::string smallest = world.combine_on_rank_0(
      "connected over gloo", std::to_string(send_buffer_of_this_host()), [](const std::vector<std::string>& all) {
        return std::to_string(std::ranges::min(all | std::views::transform([](const std::string& one) {
                                                 return number_of<std::size_t>(one).value_or(largest_send_buffer);
                                               })));
      });
  const std::size_t send_buffer = number_of<std::size_t>(smallest).value();
  segment_ = send_buffer * largest_segment / largest_send_buffer / sizeof(double) * sizeof(double);
  scratch_.resize(segment_);

  // Gloo sizes a socket's send buffer by its largest message so far. A buffer for a few small messages soon fills with
  // data that the peer has read but not acknowledged, which may take 40 ms (delayed ACK). So send a large message
  // first.
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

// Piece by piece, sending before receiving. This cannot deadlock even if all ranks do it at once, for example in a
// ring: when a rank writes piece n, the reader has consumed those before n or is itself working on an earlier one, so
// only one piece at a time must fit into the socket's buffers.
template <class Arrived>
void GlooCommunicator::exchange(int to, Bytes out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes,
                                bool scratch, Arrived&& arrived) {
  const auto source = out_bytes ? outgoing(to, out, out_bytes) : nullptr;
  const auto target =
      in_bytes ? incoming(from, scratch ? scratch_.data() : in, scratch ? scratch_.size() : in_bytes) : nullptr;
  for (std::size_t at = 0; at < std::max(out_bytes, in_bytes); at += segment_) {
    if (at < out_bytes) with_peer(to, [&] { source->send(at, std::min(segment_, out_bytes - at), scratch ? 0 : at); });
    if (at < in_bytes) {
      with_peer(from, [&] { target->waitRecv(); });
      arrived(at, std::min(segment_, in_bytes - at));
    }
  }
}

// A binomial tree that forwards each piece as it arrives.
void GlooCommunicator::do_broadcast(const Block& block, int root) {
  const int me = (rank() - root + size()) % size();
  const auto at = [&](int place) { return (place + root) % size(); };
  const int top = me == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size()))) : me & -me;
  auto* data = static_cast<std::byte*>(block.data);
  for (std::size_t done = 0; done < block.bytes(); done += segment_) {
    const std::size_t bytes = std::min(segment_, block.bytes() - done);
    if (me != 0) take(at(me & (me - 1)), data + done, bytes);
    for (int bit = top / 2; bit > 0; bit /= 2)
      if (me + bit < size()) put(at(me + bit), data + done, bytes);
  }
}

// Recursive doubling: in each step two ranks exchange their data and combine it in the same order of ranks, so that
// both, and in the end all, hold the same bits. Ranks beyond the largest power of two contribute their data first.
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
      std::byte* target = data + at;
      combine(block.type, reduction, target, lower ? target : scratch_.data(), lower ? scratch_.data() : target,
              length / size_of(block.type));
    });
  };
  if (rank() + core < size()) with(rank(), rank() + core);
  for (int bit = 1; bit < core; bit *= 2) with(rank() & ~bit, rank() | bit);
  if (rank() + core < size()) put(rank() + core, data, bytes);
}

// Each rank receives one part from the others, reduces it, and sends the result to all: so all have the same bits.
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
               std::byte* target = data + begin(rank()) + at;
               combine(block.type, reduction, target, target, scratch_.data(), bytes / size_of_one);
             });
  }
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    exchange(to, data + begin(rank()), length(rank()), from, data + begin(from), length(from));
  }
}

void GlooCommunicator::do_all_reduce(const Block& block, Reduction reduction) {
  if (block.bytes() <= std::min(small, segment_))  // in one piece
    reduce_small(block, reduction);
  else
    reduce_large(block, reduction);
  if (reduction == Reduction::average) divide(block.type, block.data, block.count, size());
}

}  // namespace

std::unique_ptr<Communicator> make_gloo(World& world) { return std::make_unique<GlooCommunicator>(world); }

}  // namespace multinode
