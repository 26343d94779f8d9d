// all_reduce_perf: every rank gives a block, every rank gets the sum of all of them.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/allreduce.h>
#endif

namespace perf {

// Every element needs n - 1 transfers to be summed, and n - 1 more to bring the sum to the other ranks: 2 (n - 1) S
// bytes in all. n ranks share that, each over its own link: at least 2 (n - 1) / n S bytes per link, whatever the
// algorithm. So time >= 2 (n - 1) / n S / bandwidth of a link.
const Collective all_reduce = {
    .name = "all_reduce",
    .sums = true,
    .result = [](const Place&, int) { return Source(Source::all, 0); },
    .bus_factor = [](int n) { return 2.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const MpiCall& c) {
          multinode::check(MPI_Allreduce(c.in_place ? MPI_IN_PLACE : c.in, c.out, c.count, c.type, c.sum, c.comm));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const GlooCall& c) {
          gloo::AllreduceOptions options(c.context);
          c.typed([&](auto* in, auto* out) {
            if (!c.in_place) options.setInput(in, c.count);
            options.setOutput(out, c.count);
          });
          options.setReduceFunction(c.add);
          gloo::allreduce(options);
        },
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl = [](const NcclCall& c) { return ncclAllReduce(c.in, c.out, c.count, c.type, ncclSum, c.comm, c.stream); },
#endif
};

}  // namespace perf

int main(int argc, char** argv) { return perf::run(perf::all_reduce, argc, argv); }
