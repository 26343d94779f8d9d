// communicator.hpp: one interface to the collective operations of MPI, NCCL and Gloo.
#pragma once

#include <multinode/data_type.hpp>
#include <multinode/world.hpp>

#ifdef MULTINODE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace multinode {

enum class Backend { automatic, mpi, nccl, gloo };

std::string_view name_of(Backend backend);
Backend parse_backend(std::string_view name);  // "auto", "mpi", "nccl", "gloo"; throws UsageError

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
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
  };

  Work() = default;  // nothing to wait for
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}

  // Returns when the operation is done on this rank; throws what the library said. On a GPU: makes the caller's stream
  // wait, not the host (see Communicator::set_stream).
  void wait() {
    if (const auto state = std::move(state_)) state->wait();
  }

 private:
  std::unique_ptr<State> state_;
};

// All ranks of a World, joined by one library. Every operation is collective, called by all ranks in the same order
// with the same count and type, except send and recv, which their two ranks call. One thread a process calls it.
// The blocking form runs on the calling thread; the start_ form is carried out by the communicator's own thread, in the
// order of the calls, because Open MPI progresses only inside its calls and Gloo's calls block: without it nothing
// would overlap. A blocking call lets what was started before it end first. When a started operation failed, it and all
// later ones throw the same. Every call is announced to the World's watchdog, which ends the process, naming the late
// rank, at the World's deadline.
//
// all_reduce gives every rank the same bits, whatever the type and the backend. Half and bfloat16 are added in float
// and rounded once a step. Sums and products of integers wrap around, and so does the sum that an average
// divides.
//
// On a GPU (backend nccl) blocks are device memory and "blocking" means: what is put on the caller's stream afterwards
// waits for it; the host does not. synchronize() waits on the host.
class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual Backend backend() const = 0;

  // All of these throw std::invalid_argument for a rank or a count that does not fit.
  void broadcast(Block block, int root);
  void all_reduce(Block block, Reduction reduction = Reduction::sum);  // in place
  // in: size() x out.count elements; out: the reduction of everybody's block number rank(). They must not overlap.
  void reduce_scatter(ConstBlock in, Block out, Reduction reduction = Reduction::sum);
  // out: size() x in.count elements, in order of rank. in may be this rank's own part of out.
  void all_gather(ConstBlock in, Block out);
  // send may wait for its recv: of two ranks that send to each other, one must receive first. Also started ones.
  void send(ConstBlock block, int peer);
  void recv(Block block, int peer);
  void barrier();

  Work start_broadcast(Block block, int root);
  // `name` (a string that outlives the World), if given, is what the watchdog and the observer call it.
  Work start_all_reduce(Block block, Reduction reduction = Reduction::sum, const char* name = nullptr);
  Work start_reduce_scatter(ConstBlock in, Block out, Reduction reduction = Reduction::sum);
  Work start_all_gather(ConstBlock in, Block out);
  Work start_send(ConstBlock block, int peer);
  Work start_recv(Block block, int peer);

  // Returns when everything so far is done on this rank. With nccl: waits on the host, within the World's deadline, for
  // the communicator's stream; use it instead of cudaStreamSynchronize, which would wait for a dead rank for ever.
  virtual void synchronize();

  // Called after each operation, on the thread that carried it out, with its name ("all_reduce"), the bytes of its
  // larger block on this rank, and when it began and ended there. Set it while nothing is under way. nccl: not called,
  // because what the host sees is only that the operation was queued.
  using Observer = std::function<void(const char* name, std::size_t bytes, std::chrono::steady_clock::time_point begin,
                                      std::chrono::steady_clock::time_point end)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

#ifdef MULTINODE_HAVE_CUDA
  // nccl: operations begin after what is on `stream` when they are called; wait() and the blocking form make it wait.
  // The caller's default stream, until then. The other backends do not use it.
  virtual void set_stream(cudaStream_t stream);
#endif

 protected:
  // What a public function was asked to do.
  struct Call {
    enum class Kind : std::uint8_t { broadcast, all_reduce, reduce_scatter, all_gather, send, recv, barrier };
    Kind kind{};
    Reduction reduction = Reduction::sum;
    int peer = Watchdog::everyone;  // the root of a broadcast
    ConstBlock in;
    Block out;
    const char* own_name = nullptr;

    const char* name() const;
  };

  enum class Carrier { thread, stream };  // who carries out what is started: the communicator's thread, or start()
  Communicator(World& world, Carrier carrier);

  // The start_ form, and with Carrier::stream also the blocking one.
  virtual Work start(const Call& call);

  // A destructor of a class that implements do_...: the communicator's thread calls them no more.
  void stop();

  // Announces the call to the watchdog, carries it out by one of the following, and tells the observer.
  void perform(const Call& call);

  // What a backend implements: plain blocking calls of its library. Arguments are checked already; count may be 0.
  virtual void do_broadcast(const Block& block, int root) = 0;
  virtual void do_all_reduce(const Block& block, Reduction reduction) = 0;
  virtual void do_reduce_scatter(const ConstBlock& in, const Block& out, Reduction reduction) = 0;
  virtual void do_all_gather(const ConstBlock& in, const Block& out) = 0;
  virtual void do_send(const ConstBlock& block, int peer) = 0;
  virtual void do_recv(const Block& block, int peer) = 0;
  virtual void do_barrier() = 0;

  World& world() const { return world_; }
  // True in a destructor that runs because of an exception: the other ranks may never come.
  bool unwinding() const noexcept { return std::uncaught_exceptions() > exceptions_; }

 private:
  class Queue;

  void carry_out(const Call& call);
  void run(const Call& call);
  Call broadcast_call(Block block, int root) const;
  Call reduce_scatter_call(ConstBlock in, Block out, Reduction reduction) const;
  Call all_gather_call(ConstBlock in, Block out) const;
  Call peer_call(Call::Kind kind, ConstBlock in, Block out, int peer) const;

  World& world_;
  Watchdog& watchdog_;
  int rank_, size_;
  Carrier carrier_;
  int exceptions_ = std::uncaught_exceptions();
  Observer observer_;
  std::shared_ptr<Queue> queue_;
};

// Collective. automatic: nccl where there is a GPU (not a stand-in) for every rank, else mpi where MPI started the
// processes, else gloo. Throws UsageError for a backend that this build lacks (naming the package to install) or that
// the launcher does not serve, HardwareAbsent for nccl without a GPU.
std::unique_ptr<Communicator> make_communicator(World& world, Backend backend);

// What automatic stands for on this rank; make_communicator takes nccl only where it is that on all ranks.
Backend choose_backend(const World& world, Backend wanted);

// What automatic stands for in a program that does not use GPUs.
Backend choose_cpu_backend(const World& world);

// Collective. For programs whose blocks are host memory: never nccl, which is a UsageError.
std::unique_ptr<Communicator> make_cpu_communicator(World& world, Backend backend);

}  // namespace multinode
