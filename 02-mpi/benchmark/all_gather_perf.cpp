// all_gather_perf: every rank gives a block, every rank gets the blocks of all ranks, in the order of the ranks.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/allgather.h>
#endif

namespace perf {

// Of the n blocks, S bytes, that a rank has at the end, one is its own. The others come in over its link: (n - 1) / n S
// bytes, whatever the algorithm. So time >= (n - 1) / n S / bandwidth of a link.
const Collective all_gather = {
    .name = "all_gather",
    .out = Blocks::per_rank,
    .result = [](const Place&, int block) { return Source(block, 0); },
    .bus_factor = [](int n) { return 1.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const MpiCall& c) {
          multinode::check(
              MPI_Allgather(c.in_place ? MPI_IN_PLACE : c.in, c.count, c.type, c.out, c.count, c.type, c.comm));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const GlooCall& c) {
          gloo::AllgatherOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            if (!c.in_place) options.setInput(in, c.count);
            options.setOutput(out, c.count * static_cast<std::size_t>(c.size));
          });
          gloo::allgather(options);
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl = [](const NcclCall& c) { return ncclAllGather(c.in, c.out, c.count, c.type, c.comm, c.stream); },
#endif
};

}  // namespace perf

int main(int argc, char** argv) { return perf::run(perf::all_gather, argc, argv); }
