// alltoall_perf: every rank has a block for each rank; rank r gets block r of every rank.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/alltoall.h>
#endif

namespace perf {

// Of a rank's n blocks, S bytes, one is for itself. The others leave over its link, (n - 1) / n S bytes, and as many
// come in. So time >= (n - 1) / n S / bandwidth of a link.
const Collective alltoall = {
    .name = "alltoall",
    .in = Blocks::per_rank,
    .out = Blocks::per_rank,
    .result = [](const Place& place, int block) { return Source(block, place.rank); },
    .bus_factor = [](int n) { return 1.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const MpiCall& c) {
          multinode::check(
              MPI_Alltoall(c.in_place ? MPI_IN_PLACE : c.in, c.count, c.type, c.out, c.count, c.type, c.comm));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const GlooCall& c) {
          gloo::AlltoallOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            options.setInput(in, c.count * static_cast<std::size_t>(c.size));
            options.setOutput(out, c.count * static_cast<std::size_t>(c.size));
          });
          gloo::alltoall(options);
        },
    .gloo_in_place = false,
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const NcclCall& c) {
#if NCCL_VERSION_CODE >= 22803
          return ncclAlltoAll(c.in, c.out, c.count, c.type, c.comm, c.stream);
#else
          multinode::NcclGroup group;
          for (int peer = 0; peer < c.size; ++peer) {
            const std::size_t offset = static_cast<std::size_t>(peer) * c.bytes;
            multinode::check(ncclSend(c.in + offset, c.count, c.type, peer, c.comm, c.stream));
            multinode::check(ncclRecv(c.out + offset, c.count, c.type, peer, c.comm, c.stream));
          }
          return group.end();
#endif
        },
    .nccl_in_place = false,
#endif
};

}  // namespace perf

int main(int argc, char** argv) { return perf::run(perf::alltoall, argc, argv); }
