// reduce_scatter_perf: every rank gives n blocks, rank r gets block r of the sum of all of them.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/alltoall.h>
#endif

namespace perf {

// A rank has n blocks, S bytes, and keeps the sum of one. Its parts of the other n - 1 blocks must leave, as they are
// or in a partial sum: (n - 1) / n S bytes over its link. So time >= (n - 1) / n S / bandwidth of a link.
const Collective reduce_scatter = {
    .name = "reduce_scatter",
    .sums = true,
    .in = Blocks::per_rank,
    .result = [](const Place& place, int) { return Source(Source::all, place.rank); },
    .bus_factor = [](int n) { return 1.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const MpiCall& c) {
          multinode::check(MPI_Reduce_scatter_block(c.in, c.out, c.count, c.type, c.sum, c.comm));
        },
    .mpi_in_place = false,  // in place, MPI leaves the result in block 0, not in the rank's own block
#endif
#ifdef MULTINODE_HAVE_GLOO
    // Gloo has no reduce-scatter for all types. All-to-all brings all parts of block r to rank r, which adds them in
    // the output buffer: out of place it has room for n blocks.
    .gloo =
        [](const GlooCall& c) {
          const auto ranks = static_cast<std::size_t>(c.size);
          gloo::AlltoallOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            options.setInput(in, c.count * ranks);
            options.setOutput(out, c.count * ranks);
          });
          gloo::alltoall(options);
          for (std::size_t rank = 1; rank < ranks; ++rank) c.add(c.out, c.out, c.out + rank * c.bytes, c.count);
        },
    .gloo_in_place = false,
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const NcclCall& c) { return ncclReduceScatter(c.in, c.out, c.count, c.type, ncclSum, c.comm, c.stream); },
#endif
};

}  // namespace perf

int main(int argc, char** argv) { return perf::run(perf::reduce_scatter, argc, argv); }
