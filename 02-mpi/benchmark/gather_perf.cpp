// gather_perf: every rank gives a block, the root gets the blocks of all ranks, in the order of the ranks.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/gather.h>
#endif

namespace gather_perf {

using perf::Blocks, perf::RankAndRoot, perf::Source;

// Of the n blocks, S bytes, that the root has at the end, one is its own. The others come in over its link: (n - 1) / n
// S bytes, whatever the algorithm. So time >= (n - 1) / n S / bandwidth of a link.
const perf::Collective gather = {
    .name = "gather",
    .rooted = true,
    .out = Blocks::per_rank,
    .result = [](const RankAndRoot& place,
                 int block) { return Source(place.rank == place.root ? block : Source::nothing, 0); },
    .bus_factor = [](int n) { return 1.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const perf::MpiCall& c) {
          multinode::check(MPI_Gather(c.in_place && c.rank == c.root ? MPI_IN_PLACE : c.in, c.count, c.type, c.out,
                                      c.count, c.type, c.root, c.comm));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const perf::GlooCall& c) {
          gloo::GatherOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            options.setInput(in, c.count);  // in place, too: it lies where it would be copied to
            if (c.rank == c.root) options.setOutput(out, c.count * static_cast<std::size_t>(c.size));
          });
          options.setRoot(c.root);
          gloo::gather(options);
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const perf::NcclCall& c) {
#if NCCL_VERSION_CODE >= 22803
          return ncclGather(c.in, c.out, c.count, c.type, c.root, c.comm, c.stream);
#else
          multinode::check(ncclGroupStart());
          multinode::check(ncclSend(c.in, c.count, c.type, c.root, c.comm, c.stream));
          for (int peer = 0; peer < c.size && c.rank == c.root; ++peer)
            multinode::check(
                ncclRecv(c.out + static_cast<std::size_t>(peer) * c.bytes, c.count, c.type, peer, c.comm, c.stream));
          return ncclGroupEnd();
#endif
        },
#endif
};

}  // namespace gather_perf

int main(int argc, char** argv) { return perf::run(gather_perf::gather, argc, argv); }
