// alltoallv_perf: every rank has a block for each rank, of different sizes; rank r gets the blocks for it of all ranks.
// Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/collective.hpp"

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/alltoallv.h>
#endif

#include <vector>

namespace alltoallv_perf {

using perf::Blocks, perf::RankAndRoot, perf::Source;

// nccl-tests' pattern: rank i sends rank j as many blocks as their distance, j - i modulo n, so that all ranks send
// and receive n (n - 1) / 2 blocks, and the largest message is n - 1 times the smallest.
static int blocks(int from, int to, int n) { return n == 1 ? 1 : (to - from + n) % n; }

static Source source_of(const RankAndRoot& place, int block) {
  int from = 0, first = 0;
  for (; block >= blocks(from, place.rank, place.size); ++from) block -= blocks(from, place.rank, place.size);
  for (int to = 0; to < place.rank; ++to) first += blocks(from, to, place.size);
  return Source(from, first + block);
}

// Calls function(peer, number of elements, to or from the peer; the first of them).
template <class Function>
static void each_peer(const RankAndRoot& place, bool sends, std::size_t count, Function&& function) {
  std::size_t first = 0;
  for (int peer = 0; peer < place.size; ++peer) {
    const int number = sends ? blocks(place.rank, peer, place.size) : blocks(peer, place.rank, place.size);
    const std::size_t elements = static_cast<std::size_t>(number) * count;
    function(peer, elements, first);
    first += elements;
  }
}

const perf::Collective alltoallv = {
    .name = "alltoallv",
    .in = Blocks::per_pair,
    .out = Blocks::per_pair,
    .result = source_of,
    // nccl-tests' factor, that of alltoall. Nothing stays on a rank here, so its link carries S bytes.
    .bus_factor = [](int n) { return 1.0 * (n - 1) / n; },
#ifdef MULTINODE_HAVE_MPI
    .mpi =
        [](const perf::MpiCall& c) {
          const auto n = static_cast<std::size_t>(c.size);
          std::vector<int> numbers(4 * n);
          int* const all = numbers.data();
          for (const bool sends : {true, false})
            each_peer(c, sends, static_cast<std::size_t>(c.count),
                      [&](int peer, std::size_t elements, std::size_t first) {
                        all[(sends ? 0 : 2) * c.size + peer] = static_cast<int>(elements);
                        all[(sends ? 1 : 3) * c.size + peer] = static_cast<int>(first);
                      });
          multinode::check(MPI_Alltoallv(c.in, all, all + n, c.type, c.out, all + 2 * n, all + 3 * n, c.type, c.comm));
        },
    .mpi_in_place = false,  // MPI_IN_PLACE needs as much from a rank as goes to it
#endif
#ifdef MULTINODE_HAVE_GLOO
    .gloo =
        [](const perf::GlooCall& c) {
          gloo::AlltoallvOptions options(c.context);
          const auto numbers = [&](bool sends) {
            std::vector<std::int64_t> all;
            each_peer(c, sends, c.count, [&](int, std::size_t elements, std::size_t) {
              all.push_back(static_cast<std::int64_t>(elements));
            });
            return all;
          };
          c.typed([&](auto* in, auto* out) {
            options.setInput(in, numbers(true));
            options.setOutput(out, numbers(false));
          });
          gloo::alltoallv(options);
        },
    .gloo_in_place = false,
#endif
#ifdef MULTINODE_HAVE_NCCL
    .nccl =
        [](const perf::NcclCall& c) {
          const std::size_t width = c.bytes / c.count;
          multinode::check(ncclGroupStart());
          each_peer(c, true, c.count, [&](int peer, std::size_t elements, std::size_t first) {
            if (elements) multinode::check(ncclSend(c.in + first * width, elements, c.type, peer, c.comm, c.stream));
          });
          each_peer(c, false, c.count, [&](int peer, std::size_t elements, std::size_t first) {
            if (elements) multinode::check(ncclRecv(c.out + first * width, elements, c.type, peer, c.comm, c.stream));
          });
          return ncclGroupEnd();
        },
    .nccl_in_place = false,
#endif
};

}  // namespace alltoallv_perf

int alltoallv_perf_main(int argc, char** argv) { return perf::run(alltoallv_perf::alltoallv, argc, argv); }
