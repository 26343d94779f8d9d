// communicator.hpp: one interface to the collective operations of MPI, NCCL and Gloo.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/block.hpp>
#include <multinode/communicator/libraries.hpp>
#include <multinode/world/world.hpp>

#ifdef MULTINODE_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace multinode {

enum class Backend { automatic, mpi, nccl, gloo };

std::string_view name_of(Backend backend);
Backend parse_backend(std::string_view name);  // "auto", "mpi", "nccl", "gloo"; throws UsageError

// An operation in progress. Do not free or change its blocks, or read its results, before wait() returns. If one that a
// communicator started is destroyed before, the communicator's next call throws std::logic_error.
class [[nodiscard("wait() for it")]] Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
  };

  Work() = default;  // nothing to wait for
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}

  // Returns when the operation is complete on this rank; throws the library's error. nccl: makes the caller's stream
  // wait, not the host (see Communicator::set_stream).
  void wait() {
    if (const auto state = std::move(state_)) state->wait();
  }

 private:
  std::unique_ptr<State> state_;
};

// All ranks of a World, connected by one library. Every operation is collective: all ranks call it in the same order
// with the same count and type. Not thread-safe: one thread per process uses a communicator. Every call is announced to
// the World's watchdog, which names the late rank and ends the process at the World's deadline.
//
// all_reduce gives every rank the same bits, for every type and backend. half and bfloat16 are added in float and
// rounded once per step. Sums and products of integers wrap around, and so does the sum behind an average.
//
// An operation returns when it is complete on this rank (mpi, gloo: HostCommunicator) or when it is queued (nccl): then
// the blocks are device memory, work put on the caller's stream afterwards waits for it, and synchronize() waits on the
// host.
//
// Only the operations that a tool of this project needs, as gloo's authors say of theirs. start_all_reduce() alone is
// asynchronous, because a training overlaps that one; there is no send: chapter 03 calls the libraries for it.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual Backend backend() const = 0;

  // All throw std::invalid_argument for a rank out of range, and std::runtime_error for an error of the library.
  virtual void broadcast(Block block, int root) = 0;
  // In place.
  virtual void all_reduce(const Block& block, Reduction reduction = Reduction::sum) = 0;
  virtual void barrier() = 0;

  // Started operations are carried out in the order of the calls; a blocking one waits for those before it. If one
  // fails, it and all later ones throw the same error. `name`, if given, names the operation for the watchdog. It must
  // outlive the World.
  virtual Work start_all_reduce(Block block, Reduction reduction = Reduction::sum, const char* name = nullptr) = 0;

  // Returns when all operations so far are complete on this rank. nccl: waits on the host for the communicator's stream
  // and the caller's, at most until the World's deadline. Use it instead of cudaStreamSynchronize, which waits for a
  // dead rank forever.
  virtual void synchronize() = 0;

#ifdef MULTINODE_HAVE_CUDA
  // nccl: operations begin after the work that is on `stream` when they are called; wait() and the blocking form make
  // `stream` wait. The initial stream is the default stream. The other backends ignore it. The caller owns `stream`.
  virtual void set_stream(cudaStream_t /*stream*/) {}
#endif

 protected:
  explicit Communicator(World& world);

  void require_root(int root) const;  // throws what broadcast() throws

  // A started operation. It may outlive the communicator.
  class Started : public Work::State {
   public:
    Started(const Communicator& communicator, const char* name) : lost_(communicator.lost_), name_(name) {}
    ~Started() override {
      if (name_) *lost_ = name_;
    }
    void wait() final {
      name_ = nullptr;
      wait_for_it();
    }

   private:
    virtual void wait_for_it() = 0;
    std::shared_ptr<const char*> lost_;
    const char* name_;
  };
  void require_waits() const;  // called by each operation

  World& world() const { return world_; }
  Watchdog& watchdog() const { return watchdog_; }
  // True in a destructor that runs because of an exception: the other ranks may never call theirs.
  bool unwinding() const noexcept { return std::uncaught_exceptions() > exceptions_; }

 private:
  World& world_;
  Watchdog& watchdog_;
  int rank_, size_;
  int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<const char*> lost_ =
      std::make_shared<const char*>();  // the operation whose Work was destroyed before wait()
};

// Collective. automatic: nccl if every rank has its own GPU, else mpi if MPI started the processes, else
// gloo. `world` must outlive the result. Throws UsageError if this build lacks the backend (naming the
// package to install) or the launcher does not support it, HardwareAbsent for nccl if two ranks would share a GPU.
std::unique_ptr<Communicator> make_communicator(World& world, Backend backend = Backend::automatic);

#ifdef MULTINODE_HAVE_NCCL
// Collective. The first of the `each` GPUs of this process; the same answer, nothing, on all ranks unless every process
// has that many and no two share one. A launcher may show each process all GPUs of the node, or its own alone (srun
// --gpus-per-task 1).
std::optional<int> own_gpus(World& world, int each = 1);

// Collective. As own_gpus(); throws HardwareAbsent instead of returning nothing.
int require_own_gpus(World& world, int each = 1);
#endif

// The choice of automatic in a program that does not use GPUs: mpi or gloo.
Backend choose_cpu_backend(const World& world);

// Collective. make_communicator for programs whose blocks are host memory: nccl is a UsageError.
std::unique_ptr<Communicator> make_cpu_communicator(World& world, Backend backend = Backend::automatic);

}  // namespace multinode
