// broadcast_perf: the root gives a block, every rank gets it.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/broadcast.h>
#endif

#include <algorithm>

namespace broadcast_perf {

using perf::RankAndRoot, perf::Source;

#ifdef MULTINODE_HAVE_MPI
// MPI's broadcast is always in place. Out of place the root copies its input first.
static std::byte* buffer(const perf::MpiCall& c) {
  if (c.rank == c.root && !c.in_place) std::copy_n(c.in, c.bytes, c.out);
  return c.out;
}
#endif

// All S bytes must leave the root, and come to each of the others: S bytes over the busiest link, whatever the
// algorithm. So time >= S / bandwidth of a link.
const perf::Collective broadcast = {
    .name = "broadcast",
    .rooted = true,
    .result = [](const RankAndRoot& place, int) { return Source(place.root, 0); },
    .bus_factor = [](int) { return 1.0; },
#ifdef MULTINODE_HAVE_MPI
    .mpi = [](const perf::MpiCall& c) { multinode::check(MPI_Bcast(buffer(c), c.count, c.type, c.root, c.comm)); },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const perf::GlooCall& c) {
          gloo::BroadcastOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            if (c.rank == c.root && !c.in_place) options.setInput(in, c.count);
            options.setOutput(out, c.count);
          });
          options.setRoot(c.root);
          gloo::broadcast(options);
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const perf::NcclCall& c) { return ncclBroadcast(c.in, c.out, c.count, c.type, c.root, c.comm, c.stream); },
#endif
};

}  // namespace broadcast_perf

int main(int argc, char** argv) { return perf::run(broadcast_perf::broadcast, argc, argv); }
