// communicator.hpp: one interface to the collective operations of MPI, NCCL and Gloo.
#pragma once

#include <multinode/world.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

namespace multinode {

using half = Eigen::half;
using bfloat16 = Eigen::bfloat16;

enum class DataType { float32, float64, float16, bfloat16, int32, int64, uint8 };
enum class Reduction {
  sum,
  product,
  min,
  max,
  average
};  // average: the sum divided by the number of ranks (integers: towards 0)
enum class Backend { automatic, mpi, nccl, gloo };

std::size_t size_of(DataType type);  // bytes of an element
std::string_view name_of(DataType type);
std::string_view name_of(Reduction reduction);
std::string_view name_of(Backend backend);
Backend parse_backend(std::string_view name);  // "auto", "mpi", "nccl", "gloo"; throws UsageError

template <class T>
constexpr DataType data_type_of() {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return DataType::float32;
  else if constexpr (std::is_same_v<U, double>)
    return DataType::float64;
  else if constexpr (std::is_same_v<U, half>)
    return DataType::float16;
  else if constexpr (std::is_same_v<U, bfloat16>)
    return DataType::bfloat16;
  else if constexpr (std::is_same_v<U, std::int32_t>)
    return DataType::int32;
  else if constexpr (std::is_same_v<U, std::int64_t>)
    return DataType::int64;
  else {
    static_assert(std::is_same_v<U, std::uint8_t>, "no DataType for this type");
    return DataType::uint8;
  }
}

// A block of elements that somebody else owns: host memory for mpi and gloo, device memory for nccl.
struct Block {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DataType type = DataType::float32;

  Block() = default;
  Block(void* d, std::size_t n, DataType t) : data(d), count(n), type(t) {}
  template <class T>
  Block(std::span<T> s) : data(s.data()), count(s.size()), type(data_type_of<T>()) {}
  std::size_t bytes() const { return count * size_of(type); }
};
struct ConstBlock {
  const void* data = nullptr;
  std::size_t count = 0;
  DataType type = DataType::float32;

  ConstBlock() = default;
  ConstBlock(const void* d, std::size_t n, DataType t) : data(d), count(n), type(t) {}
  ConstBlock(const Block& b) : data(b.data), count(b.count), type(b.type) {}
  template <class T>
  ConstBlock(std::span<T> s) : data(s.data()), count(s.size()), type(data_type_of<T>()) {}
  std::size_t bytes() const { return count * size_of(type); }
};

// An operation under way. Its blocks must stay as they are until wait() returns.
class Work {
 public:
  Work() = default;  // nothing to wait for
  // Returns when the operation is done on this rank; throws what the library said. On a GPU: makes the communicator's
  // caller's stream wait, not the host (see Communicator::set_stream).
  void wait();

 private:
  friend class Communicator;
  explicit Work(std::future<void> done) : done_(std::move(done)) {}
  std::future<void> done_;
};

// All ranks of a World, joined by one library. Every operation is collective, called by all ranks in the same order,
// except send and recv, which their two ranks call. One thread a process calls it.
// The blocking form runs on the calling thread; the start_ form is carried out by the communicator's own thread, in the
// order of the calls, because Open MPI progresses only inside its calls and Gloo's calls block: without it nothing
// would overlap. Every call is announced to the World's watchdog, which ends the process, naming the late rank, at the
// World's deadline.
class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual Backend backend() const = 0;

  // The same count and type on every rank.
  void broadcast(Block block, int root);
  void all_reduce(Block block, Reduction reduction = Reduction::sum);  // in place
  // in: size() x out.count elements; out: the reduction of everybody's block number rank().
  void reduce_scatter(ConstBlock in, Block out, Reduction reduction = Reduction::sum);
  // out: size() x in.count elements, in order of rank.
  void all_gather(ConstBlock in, Block out);
  void send(ConstBlock block, int peer);
  void recv(Block block, int peer);
  void barrier();

  Work start_broadcast(Block block, int root);
  Work start_all_reduce(Block block, Reduction reduction = Reduction::sum);
  Work start_reduce_scatter(ConstBlock in, Block out, Reduction reduction = Reduction::sum);
  Work start_all_gather(ConstBlock in, Block out);
  Work start_send(ConstBlock block, int peer);
  Work start_recv(Block block, int peer);

 protected:
  explicit Communicator(World& world);

  // What a backend implements: plain blocking calls of its library. Arguments are checked already; count may be 0.
  // nccl enqueues instead.
  virtual void do_broadcast(Block block, int root) = 0;
  virtual void do_all_reduce(Block block, Reduction reduction) = 0;
  virtual void do_reduce_scatter(ConstBlock in, Block out, Reduction reduction) = 0;
  virtual void do_all_gather(ConstBlock in, Block out) = 0;
  virtual void do_send(ConstBlock block, int peer) = 0;
  virtual void do_recv(Block block, int peer) = 0;
  virtual void do_barrier() = 0;

 private:
  int rank_, size_;
};

// Collective. automatic: nccl where there is a GPU for every local rank, else mpi where MPI started the processes, else
// gloo. Throws UsageError for a backend that this build lacks (naming the package to install), HardwareAbsent for nccl
// without a GPU.
std::unique_ptr<Communicator> make_communicator(World& world, Backend backend);

// What automatic stands for here.
Backend choose_backend(const World& world, Backend wanted);

}  // namespace multinode
