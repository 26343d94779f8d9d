// ranks.hpp: the ranks of this process, connected with those of all other processes by MPI, Gloo or NCCL; their
// buffers, and the timer.
#pragma once

#include "collective.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace perf {

// The operation that is called in each iteration.
struct Operation {
  multinode::DataType type = multinode::DataType::float32;
  std::size_t count = 0;  // elements of a block
  bool in_place = false;

  std::size_t block_bytes() const { return count * multinode::size_of(type); }
};

// Seconds per call: [local rank][sample].
using Samples = std::vector<std::vector<double>>;

class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  virtual multinode::Backend backend() const = 0;
  int size() const { return world_.size() * local_; }   // ranks in all
  int first() const { return world_.rank() * local_; }  // this process's first rank
  int local() const { return local_; }                  // ranks of this process
  virtual std::string device(int local) const = 0;      // "cpu", "gpu 0, NVIDIA H200"

  Place place(int local) const { return {first() + local, size()}; }

  virtual bool has_in_place(const Collective& collective) const = 0;

  // The most elements that a buffer may have: the library's counts may be int.
  virtual std::size_t largest_count() const { return std::numeric_limits<std::size_t>::max(); }

  // Bytes that this process can still allocate for buffers: its share of what its node has.
  virtual std::size_t available_memory() const = 0;

  // Allocates two buffers per local rank: `in_bytes` for the input, `both_bytes` for the output and for in-place calls.
  // Call it once.
  virtual void allocate(std::size_t in_bytes, std::size_t both_bytes) = 0;

  // Access from the host to a part of a local rank's buffer: write() stores what `fill` writes, read() passes the
  // content to `look`.
  enum class Buffer { in, both };
  using Host = std::function<void(std::span<std::byte>)>;
  virtual void write(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& fill) = 0;
  virtual void read(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& look) = 0;

  // Collective, called by all processes: a barrier of the library, then `samples` samples of `calls` calls by every
  // rank. Each sample is timed as a whole.
  virtual Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) = 0;

 protected:
  Ranks(multinode::World& world, int local) : world_(world), local_(local) {}
  multinode::World& world() const { return world_; }

  // The arguments of a local rank's call; its buffers begin at `in` and `both`.
  template <class LibraryCall>
  LibraryCall call_of(const Collective& collective, const Operation& operation, int local, std::byte* in,
                      std::byte* both) const {
    LibraryCall call;
    static_cast<Place&>(call) = place(local);
    call.in_place = operation.in_place;
    call.count = static_cast<decltype(call.count)>(operation.count);
    call.bytes = operation.block_bytes();
    const auto block = static_cast<std::ptrdiff_t>(call.bytes);
    call.in = operation.in_place ? both + block * collective.first_in(call.rank) : in;
    call.out = both + (operation.in_place ? block * collective.first_out(call.rank) : 0);
    return call;
  }

 private:
  multinode::World& world_;
  int local_;
};

// Collective. `local`: the ranks of each process. `automatic`: nccl where each rank has its own GPU, mpi where MPI
// started the processes and each is one rank, else gloo. Throws UsageError for what the backend cannot do,
// HardwareAbsent for nccl without a GPU.
std::unique_ptr<Ranks> make_ranks(multinode::World& world, multinode::Backend backend, int local);

// One function per library, each in its own file, which is built if the library is found.
std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, int local);
std::unique_ptr<Ranks> make_gloo_ranks(multinode::World& world, int local);
std::unique_ptr<Ranks> make_nccl_ranks(multinode::World& world, int local);

}  // namespace perf
