// scatter_perf: the root gives n blocks, rank r gets block r.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/scatter.h>
#endif

namespace scatter_perf {

using perf::Blocks, perf::RankAndRoot, perf::Source;

// Of the root's n blocks, S bytes, it keeps one. The others leave over its link: (n - 1) / n S bytes, whatever the
// algorithm. So time >= (n - 1) / n S / bandwidth of a link.
const perf::Collective scatter = {
    .name = "scatter",
    .rooted = true,
    .in = Blocks::per_rank,
    .result = [](const RankAndRoot& place, int) { return Source(place.root, place.rank); },
    .bus_factor = [](int n) { return 1.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const perf::MpiCall& c) {
          multinode::check(MPI_Scatter(c.in, c.count, c.type, c.in_place && c.rank == c.root ? MPI_IN_PLACE : c.out,
                                       c.count, c.type, c.root, c.comm));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const perf::GlooCall& c) {
          gloo::ScatterOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            std::vector<decltype(in)> inputs;
            for (int rank = 0; rank < c.size && c.rank == c.root; ++rank)
              inputs.push_back(in + static_cast<std::size_t>(rank) * c.count);
            options.setInputs(inputs, c.count);
            options.setOutput(out, c.count);  // also in place: it lies where Gloo would copy it from
          });
          options.setRoot(c.root);
          gloo::scatter(options);
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const perf::NcclCall& c) {
#if NCCL_VERSION_CODE >= 22803
          return ncclScatter(c.in, c.out, c.count, c.type, c.root, c.comm, c.stream);
#else
          multinode::check(ncclGroupStart());
          for (int peer = 0; peer < c.size && c.rank == c.root; ++peer)
            multinode::check(
                ncclSend(c.in + static_cast<std::size_t>(peer) * c.bytes, c.count, c.type, peer, c.comm, c.stream));
          multinode::check(ncclRecv(c.out, c.count, c.type, c.root, c.comm, c.stream));
          return ncclGroupEnd();
#endif
        },
#endif
};

}  // namespace scatter_perf

int main(int argc, char** argv) { return perf::run(scatter_perf::scatter, argc, argv); }
