// ranks.hpp: the ranks of this process, joined with those of all other processes by MPI, Gloo or NCCL; their buffers,
// and the stop-watch.
#pragma once

#include "collective.hpp"
#include "values.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace perf {

// What is called, again and again.
struct Operation {
  multinode::DataType type = multinode::DataType::float32;
  Redop redop = Redop::sum;
  int root = 0;
  std::size_t count = 0;  // elements of a block
  bool in_place = false;
  bool once = false;  // for a check: -m and -G do not repeat it
};

// How a library is used; see options.hpp for what each means.
struct Usage {
  int threads = 1;           // -t
  int ranks_per_thread = 1;  // -g
  MpiCalls mpi_calls = MpiCalls::blocking;
  bool device_memory = false;   // --memory device (mpi)
  std::size_t offset = 0;       // -u: elements by which the buffers are shifted
  int aggregate = 1;            // -m
  bool blocking = false;        // -z
  bool default_stream = false;  // -y
  bool parallel_init = false;   // -p
  int graph_launches = 0;       // -G
  bool host_time = false;       // -C
  int register_buffers = 0;     // -R
  bool memory_report = false;   // -M
};

// Where input and output of an in-place call begin in their common buffer, in bytes, for blocks of `block` bytes.
std::size_t in_offset(const Collective& collective, const Place& place, std::size_t block);
std::size_t out_offset(const Collective& collective, const Place& place, std::size_t block);

// Seconds a call: [local rank][sample].
using Samples = std::vector<std::vector<double>>;

class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  virtual multinode::Backend backend() const = 0;
  int size() const { return world_.size() * local_; }   // ranks of all processes
  int first() const { return world_.rank() * local_; }  // this process's first rank
  int local() const { return local_; }                  // ranks of this process
  virtual std::string device(int local) const = 0;      // "cpu", "gpu 0, NVIDIA H200"

  Place place(int local, int root) const { return {first() + local, size(), root}; }

  // Why `collective` cannot be run so on this backend; "" if it can. The same on all processes.
  virtual std::string refusal(const Collective& collective, Redop redop) const = 0;
  virtual bool has_in_place(const Collective& collective) const = 0;

  // Elements that a buffer may have: the library's counts may be int.
  virtual std::size_t largest_count() const { return std::numeric_limits<std::size_t>::max(); }

  // -M: bytes of device memory that the library and the buffers took, in a line. "": nothing to say.
  virtual std::string memory_report() const { return ""; }

  // Bytes that this process can still allocate for buffers, shared fairly with the processes of its node.
  virtual std::size_t available_memory() const = 0;

  // Two buffers a local rank: `in_bytes` for the input, `both_bytes` for the output and for in-place calls. Once.
  virtual void allocate(std::size_t in_bytes, std::size_t both_bytes) = 0;

  // -u: from now on, the buffers begin so many bytes later than they were allocated.
  void shift(std::size_t bytes) { shift_ = bytes; }

  // A part of a buffer of a local rank, on the host: write() calls fill, whose work then is in the buffer; read() calls
  // look with what is in it.
  enum class Buffer { in, both };
  using Host = std::function<void(std::span<std::byte>)>;
  virtual void write(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& fill) = 0;
  virtual void read(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& look) = 0;

  // Collective, called by all processes: a barrier of the library, and then `samples` times `calls` calls by every
  // rank; each sample is timed as a whole.
  virtual Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) = 0;

  // The same with the collective's bare loop instead of the stop-watch: seconds a call of one rank. Collective.
  virtual double measure_bare_loop(const Collective& collective, const Operation& operation, int calls);

 protected:
  Ranks(multinode::World& world, int local) : world_(world), local_(local) {}
  multinode::World& world() const { return world_; }
  std::size_t shift() const { return shift_; }

  // The call of a local rank, whose buffers begin at `in` and `both`.
  template <class LibraryCall>
  LibraryCall call_of(const Collective& collective, const Operation& operation, int local, std::byte* in,
                      std::byte* both) const {
    LibraryCall call;
    static_cast<Place&>(call) = place(local, operation.root);
    call.in_place = operation.in_place;
    const std::size_t block = operation.count * multinode::size_of(operation.type);
    call.in = operation.in_place ? both + in_offset(collective, call, block) : in;
    call.out = both + (operation.in_place ? out_offset(collective, call, block) : 0);
    return call;
  }

 private:
  multinode::World& world_;
  int local_;
  std::size_t shift_ = 0;
};

// Collective. `automatic`: nccl where there are GPUs, mpi where MPI started the processes and each is one rank, else
// gloo. Throws UsageError for what the backend cannot do, HardwareAbsent for nccl without a GPU.
std::unique_ptr<Ranks> make_ranks(multinode::World& world, multinode::Backend backend, const Usage& usage);

// One a library, in a file of its own, built where the library is.
std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, const Usage& usage);
std::unique_ptr<Ranks> make_gloo_ranks(multinode::World& world, const Usage& usage);
std::unique_ptr<Ranks> make_nccl_ranks(multinode::World& world, const Usage& usage);

// Host memory that this process may still take: what the kernel and the control group leave, divided among the
// processes of this node.
std::size_t available_host_memory(const multinode::World& world);

}  // namespace perf
