// collective.hpp: the description of a collective operation. Each program defines one constant of this type.
#pragma once

#include <multinode/base/check.hpp>
#include <multinode/communicator/data_type.hpp>

#ifdef MULTINODE_HAVE_MPI
#include <multinode/communicator/mpi.hpp>

#include <mpi.h>
#endif
#ifdef MULTINODE_HAVE_GLOO
#include <gloo/context.h>
#endif
#ifdef MULTINODE_HAVE_NCCL
#include <multinode/communicator/device.hpp>
#endif

#include <cstddef>
#include <functional>
#include <type_traits>

namespace perf {

// The buffers of every collective are made of blocks of `count` elements: one, or one per rank.
enum class Blocks { one, per_rank };
inline std::size_t number_of(Blocks blocks, int ranks) {
  return blocks == Blocks::one ? 1 : static_cast<std::size_t>(ranks);
}

struct Place {
  int rank = 0;
  int size = 1;  // ranks in all
};

// What must be in a block of the output: block number `block` of the input of rank `rank`, or its sum over all ranks.
struct Source {
  static constexpr int all = -1;  // the sum
  constexpr Source(int its_rank, int its_block) : rank(its_rank), block(its_block) {}
  int rank, block;
};

// One call by one rank. In place, `in` and `out` lie in one buffer. Out of place, the buffer at `out` has room for the
// input as well.
struct Call : Place {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  bool in_place = false;
};

#ifdef MULTINODE_HAVE_MPI
struct MpiCall : Call {
  int count = 0;          // of a block
  std::size_t bytes = 0;  // the same
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op sum = MPI_OP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
};
#endif

#ifdef MULTINODE_HAVE_GLOO
struct GlooCall : Call {
  std::size_t count = 0, bytes = 0;  // of a block
  multinode::DataType type{};
  std::function<void(void*, const void*, const void*, std::size_t)> add;
  std::shared_ptr<gloo::Context> context;

  // function(T* in, T* out), T being the type of the elements.
  template <class Function>
  void typed(Function&& function) const {
    multinode::with_type(type, [&](auto zero) {
      function(reinterpret_cast<decltype(zero)*>(in), reinterpret_cast<decltype(zero)*>(out));
    });
  }
};
#endif

#ifdef MULTINODE_HAVE_NCCL
struct NcclCall : Call {
  std::size_t count = 0, bytes = 0;  // of a block
  ncclDataType_t type{};
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};
#endif

struct Collective {
  const char* name = nullptr;  // all_reduce
  bool sums = false;           // adds the blocks of the ranks
  Blocks in = Blocks::one, out = Blocks::one;
  Blocks larger() const { return in == Blocks::one ? out : in; }

  // The first block of the input and of the output in the one buffer of an in-place call: if one of them is a single
  // block, it lies at the rank's own block of the other.
  int first_in(int rank) const { return in < out ? rank : 0; }
  int first_out(int rank) const { return out < in ? rank : 0; }

  // What must be in block `block` of the output afterwards.
  Source (*result)(const Place&, int block) = nullptr;

  // busbw = algbw x bus_factor(ranks), where algbw = size / time and size is that of the larger buffer.
  double (*bus_factor)(int ranks) = nullptr;

  // The plain calls of each library. NCCL's put the operation on the stream and return their status. With several GPUs
  // per process they are called inside a group.
#ifdef MULTINODE_HAVE_MPI
  void (*mpi)(const MpiCall&) = nullptr;
  bool mpi_in_place = true;
#endif
#ifdef MULTINODE_HAVE_GLOO
  void (*gloo)(const GlooCall&) = nullptr;
  bool gloo_in_place = true;
#endif
#ifdef MULTINODE_HAVE_NCCL
  ncclResult_t (*nccl)(const NcclCall&) = nullptr;
  bool nccl_in_place = true;
#endif
};

// main() of a benchmark program. Exit status: 0 right, 1 wrong elements, too slow or timed out, 2 bad command line or
// environment, 77 no GPU.
int run(const Collective& collective, int argc, const char* const* argv);

}  // namespace perf
