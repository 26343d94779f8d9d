// sendrecv_perf: every rank sends a block to the next rank and receives one from the rank before it, in a ring.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/transport/unbound_buffer.h>
#endif

#include <algorithm>

namespace perf {

static int next(const Place& place) { return (place.rank + 1) % place.size; }
static int previous(const Place& place) { return (place.rank + place.size - 1) % place.size; }

// S bytes leave each rank over its link, and S bytes come in, the other way, at the same time. So
// time >= S / bandwidth of a link.
const Collective sendrecv = {
    .name = "sendrecv",
    .result = [](const Place& place, int) { return Source(previous(place), 0); },
    .bus_factor = [](int) { return 1.0; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const MpiCall& c) {
          if (c.in_place)
            multinode::check(
                MPI_Sendrecv_replace(c.out, c.count, c.type, next(c), 0, previous(c), 0, c.comm, MPI_STATUS_IGNORE));
          else
            multinode::check(MPI_Sendrecv(c.in, c.count, c.type, next(c), 0, c.out, c.count, c.type, previous(c), 0,
                                          c.comm, MPI_STATUS_IGNORE));
        },
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const GlooCall& c) {
          if (c.size == 1) {  // Gloo has no connection from a rank to itself
            std::copy_n(c.in, c.bytes, c.out);
            return;
          }
          const auto in = c.context->createUnboundBuffer(c.in, c.bytes);
          const auto out = c.context->createUnboundBuffer(c.out, c.bytes);
          out->recv(previous(c), 0);
          in->send(next(c), 0);
          in->waitSend();
          out->waitRecv();
        },
    .gloo_in_place = false,
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const NcclCall& c) {
          multinode::NcclGroup group;
          multinode::check(ncclSend(c.in, c.count, c.type, next(c), c.comm, c.stream));
          multinode::check(ncclRecv(c.out, c.count, c.type, previous(c), c.comm, c.stream));
          return group.end();
        },
    .nccl_in_place = false,
#endif
};

}  // namespace perf

int main(int argc, char** argv) { return perf::run(perf::sendrecv, argc, argv); }
