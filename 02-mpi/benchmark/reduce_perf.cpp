// reduce_perf: every rank gives a block, the root gets the sum (or product ...) of all of them.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/reduce.h>
#endif

namespace reduce_perf {

using perf::RankAndRoot, perf::Source;

// The root must receive the sum of the others, at least S bytes, and every other rank must send its part: S bytes over
// the busiest link, whatever the algorithm. So time >= S / bandwidth of a link.
const perf::Collective reduce = {
    .name = "reduce",
    .reduces = true,
    .rooted = true,
    .result = [](const RankAndRoot& place,
                 int) { return Source(place.rank == place.root ? Source::all : Source::nothing, 0); },
    .bus_factor = [](int) { return 1.0; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const perf::MpiCall& c) {
          multinode::check(MPI_Reduce(c.in_place && c.rank == c.root ? MPI_IN_PLACE : c.in, c.out, c.count, c.type,
                                      c.op, c.root, c.comm));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const perf::GlooCall& c) {
          gloo::ReduceOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            if (!c.in_place) options.setInput(in, c.count);
            options.setOutput(out, c.count);  // on all ranks: they hold partial sums
          });
          options.setRoot(c.root);
          options.setReduceFunction(c.reduce);
          gloo::reduce(options);
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const perf::NcclCall& c) {
          return ncclReduce(c.in, c.out, c.count, c.type, c.op, c.root, c.comm, c.stream);
        },
#endif
};

}  // namespace reduce_perf

int main(int argc, char** argv) { return perf::run(reduce_perf::reduce, argc, argv); }
