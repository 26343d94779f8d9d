// ranks.hpp: the ranks of this process, connected with those of all other processes by MPI, Gloo or NCCL; their
// buffers, and the timer.
#pragma once

#include "collective.hpp"
#include "values.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace perf {

// The operation that is called in each iteration.
struct Operation {
  multinode::DataType type = multinode::DataType::float32;
  Redop redop = Redop::sum;
  int root = 0;
  std::size_t count = 0;  // elements of a block
  bool in_place = false;
  bool once = false;  // for a check: ignores -G, which would repeat it

  std::size_t block_bytes() const { return count * multinode::size_of(type); }
};

// How a library is used; see options.hpp for what each means.
struct Usage {
  std::function<int(int process)> color = [](int) { return 0; };  // NCCL_TESTS_SPLIT
  int threads = 1;                                                // -t
  int ranks_per_thread = 1;                                       // -g
  int graph_launches = 0;                                         // -G
};

// Seconds per call: [local rank][sample].
using Samples = std::vector<std::vector<double>>;

// A group of ranks: all, or with NCCL_TESTS_SPLIT those of the processes of one color. All groups have the same size.
class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  virtual multinode::Backend backend() const = 0;
  int size() const { return static_cast<int>(group_.size()) * local_; }  // ranks of the group
  int first() const { return rank_of(world_.rank() * local_); }          // this process's first rank
  int local() const { return local_; }                                   // ranks of this process
  int groups() const { return world_.size() / static_cast<int>(group_.size()); }
  int color_of(int process) const { return colors_[static_cast<std::size_t>(process)]; }
  int rank_of(int number) const;  // in its group, of the rank with this number among those of all groups
  virtual std::string device(int local) const = 0;  // "cpu", "gpu 0, NVIDIA H200"

  RankAndRoot place(int local, int root) const { return {first() + local, size(), root}; }

  virtual bool has_average() const = 0;  // Redop::avg
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
  Ranks(multinode::World& world, const Usage& usage);  // collective
  multinode::World& world() const { return world_; }
  const std::vector<int>& group() const { return group_; }  // processes, in order

  // Announces `name` to the watchdog while the result lives. Only the first local rank does so, for the whole process.
  std::optional<multinode::Watchdog::Operation> announce(int local, const char* name) const {
    if (local != 0) return std::nullopt;
    return std::optional<multinode::Watchdog::Operation>(std::in_place, world_.watchdog(), name, multinode::everyone);
  }

  // Calls function(0), function(1) ... at the same time, each on its own thread, because the ranks wait for each other;
  // function(0) runs on this thread. Ends the process if one of several throws, because the others wait for it.
  void each_thread(int threads, const std::function<void(int)>& function) const;

  // The arguments of a local rank's call; its buffers begin at `in` and `both`.
  template <class LibraryCall>
  LibraryCall call_of(const Collective& collective, const Operation& operation, int local, std::byte* in,
                      std::byte* both) const {
    LibraryCall call;
    static_cast<RankAndRoot&>(call) = place(local, operation.root);
    call.in_place = operation.in_place;
    const auto block = static_cast<std::ptrdiff_t>(operation.block_bytes());
    call.in = operation.in_place ? both + block * collective.first_in(call.rank) : in;
    call.out = both + (operation.in_place ? block * collective.first_out(call.rank) : 0);
    return call;
  }

 private:
  multinode::World& world_;
  int local_;
  std::vector<int> colors_;  // of all processes
  std::vector<int> group_;
};

// Collective. `automatic`: nccl where each rank has its own GPU, mpi where MPI started the processes and each is
// one rank, else gloo. Throws UsageError for what the backend cannot do, HardwareAbsent for nccl without a GPU.
std::unique_ptr<Ranks> make_ranks(multinode::World& world, multinode::Backend backend, const Usage& usage);

// One function per library, each in its own file, which is built if the library is found.
std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, const Usage& usage);
std::unique_ptr<Ranks> make_gloo_ranks(multinode::World& world, const Usage& usage);
std::unique_ptr<Ranks> make_nccl_ranks(multinode::World& world, const Usage& usage);

}  // namespace perf
