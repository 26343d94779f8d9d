// hypercube_perf: an all-gather in log2(n) steps. In each step every rank exchanges all its blocks with one other rank,
// and then has twice as many. Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or
// environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/transport/unbound_buffer.h>
#endif

#include <algorithm>
#include <bit>

namespace hypercube_perf {

using perf::Blocks, perf::RankAndRoot, perf::Source;

// The exchange along one axis of the cube: with the rank that differs in this bit. Both have the blocks of all ranks
// that differ from them in lower bits only.
struct Exchange {
  Exchange(const RankAndRoot& place, int bit)
      : peer(place.rank ^ bit),
        blocks(static_cast<std::size_t>(bit)),
        first_sent(static_cast<std::size_t>(place.rank) / blocks * blocks),
        first_received(static_cast<std::size_t>(peer) / blocks * blocks) {}
  int peer;
  std::size_t blocks, first_sent, first_received;  // how many, and the first of those that go and come
};

template <class LibraryCall>
static std::byte* own_block(const LibraryCall& c) {
  return c.out + static_cast<std::size_t>(c.rank) * c.bytes;
}

// n - 1 of the n blocks come in over a rank's link: algbw counts these alone, and time >= (n - 1) / n S / bandwidth of
// a link. Every byte goes over one link once, so that busbw is the same.
const perf::Collective hypercube = {
    .name = "hypercube",
    .out = Blocks::per_rank,
    .result = [](const RankAndRoot&, int block) { return Source(block, 0); },
    .bus_factor = [](int) { return 1.0; },
    .volume = [](int n) { return 1.0 * (n - 1) / n; },
    .refusal =
        [](int n) {
          return std::has_single_bit(static_cast<unsigned>(n))
                     ? std::string()
                     : "a hypercube has 1, 2, 4, 8 ... ranks, not " + std::to_string(n);
        },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const perf::MpiCall& c) {
          if (!c.in_place) std::copy_n(c.in, c.bytes, own_block(c));
          for (int bit = 1; bit < c.size; bit *= 2) {
            const Exchange e(c, bit);
            multinode::check(MPI_Sendrecv(c.out + e.first_sent * c.bytes, bit * c.count, c.type, e.peer, 0,
                                          c.out + e.first_received * c.bytes, bit * c.count, c.type, e.peer, 0, c.comm,
                                          MPI_STATUS_IGNORE));
          }
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const perf::GlooCall& c) {
          if (!c.in_place) std::copy_n(c.in, c.bytes, own_block(c));
          const auto out = c.context->createUnboundBuffer(c.out, c.bytes * static_cast<std::size_t>(c.size));
          for (int bit = 1; bit < c.size; bit *= 2) {
            const Exchange e(c, bit);
            out->recv(e.peer, 0, e.first_received * c.bytes, e.blocks * c.bytes);
            out->send(e.peer, 0, e.first_sent * c.bytes, e.blocks * c.bytes);
            out->waitSend();
            out->waitRecv();
          }
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    // Step 0 is the copy, step s the exchange along axis s - 1.
    .nccl =
        [](const perf::NcclCall& c) {
          if (c.step == 0) {
            if (!c.in_place)
              multinode::check(cudaMemcpyAsync(own_block(c), c.in, c.bytes, cudaMemcpyDeviceToDevice, c.stream));
            return ncclSuccess;
          }
          const Exchange e(c, 1 << (c.step - 1));
          multinode::check(ncclGroupStart());
          multinode::check(
              ncclSend(c.out + e.first_sent * c.bytes, e.blocks * c.count, c.type, e.peer, c.comm, c.stream));
          multinode::check(
              ncclRecv(c.out + e.first_received * c.bytes, e.blocks * c.count, c.type, e.peer, c.comm, c.stream));
          return ncclGroupEnd();
        },
    .nccl_steps = [](int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n))); },
#endif
};

}  // namespace hypercube_perf

int hypercube_perf_main(int argc, char** argv) { return perf::run(hypercube_perf::hypercube, argc, argv); }
