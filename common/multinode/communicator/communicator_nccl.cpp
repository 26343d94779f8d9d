// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/deadline.hpp>
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/nccl_handle.hpp>
#include <multinode/net/address.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

namespace multinode {

namespace {

using namespace std::chrono_literals;

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(World& world);
  ~NcclCommunicator() override;
  Backend backend() const override { return Backend::nccl; }
  void set_stream(cudaStream_t stream) override { callers_ = stream; }
  void synchronize() override;

  void broadcast(Block block, int root) override {
    require_root(root);
    const auto call = [&](ncclComm_t comm) {
      return ncclBroadcast(block.data, block.data, block.count, nccl_type(block.type), root, comm, stream_.get());
    };
    enqueue("broadcast", [&] { comm_->use(call); }).wait();
  }
  void all_reduce(const Block& block, Reduction reduction) override {
    start_all_reduce(block, reduction, nullptr).wait();
  }
  Work start_all_reduce(Block block, Reduction reduction, const char* name) override {
    return enqueue(name ? name : "all_reduce", [&] { all_reduce_on_stream(block, reduction); });
  }
  void barrier() override {
    enqueue("barrier", [&] {
      all_reduce_on_stream({one_.data(), 1, DataType::uint8}, Reduction::max);
      poll("barrier", [this] { return cudaStreamQuery(stream_.get()); });
    }).wait();
  }

 private:
  using Events = std::vector<std::unique_ptr<Event>>;

  // wait() does not block the host: it makes the stream wait that was the caller's when the operation started. The
  // event goes back to those that the next operations use.
  class Enqueued : public Started {
   public:
    Enqueued(const NcclCommunicator& communicator, const char* name)
        : Started(communicator, name), callers_(communicator.callers_), unused_(communicator.unused_) {
      if (unused_->empty()) unused_->push_back(std::make_unique<Event>());
      done_ = std::move(unused_->back());
      unused_->pop_back();
      done_->record(communicator.stream_.get());
    }
    ~Enqueued() override { unused_->push_back(std::move(done_)); }

   private:
    void wait_for_it() override { done_->hold_back(callers_); }
    cudaStream_t callers_;
    std::shared_ptr<Events> unused_;
    std::unique_ptr<Event> done_;
  };

  // Queues what `operation` calls behind the caller's work.
  template <class Function>
  Work enqueue(const char* name, Function&& operation) {
    require_waits();
    ready_.record(callers_);
    ready_.hold_back(stream_.get());
    {
      const auto inside = watchdog().enter(name);
      operation();
    }
    watch_last();
    return Work(std::make_unique<Enqueued>(*this, name));
  }

  template <class Function>
  void poll(const char* what, Function&& done);

  // An operation that the GPU may not have done yet.
  struct Watched {
    Event done;
    std::atomic<const char*> name{nullptr};
    std::atomic<int> peer{0};
    std::atomic<std::uint64_t> collectives{0};
  };
  void watch_last();
  void watch(const std::stop_token& stop, int device);

  void all_reduce_on_stream(const Block& block, Reduction reduction) {
    comm_->use([&](ncclComm_t comm) {
      return ncclAllReduce(block.data, block.data, block.count, nccl_type(block.type), nccl_operation(reduction), comm,
                           stream_.get());
    });
  }

  Stream stream_;
  Event ready_;
  std::shared_ptr<Events> unused_ = std::make_shared<Events>();
  DeviceBuffer<std::uint8_t> one_{1};
  cudaStream_t callers_ = nullptr;
  std::optional<NcclHandle> comm_;
  std::array<Watched, 256> watched_;  // the last operations
  std::atomic<std::uint64_t> queued_{0}, done_{0};
  std::jthread watcher_;
};

NcclCommunicator::NcclCommunicator(World& world) : Communicator(world) {
  check(cudaMemsetAsync(one_.data(), 0, 1, stream_.get()));
  ncclUniqueId id{};
  if (rank() == 0) check(ncclGetUniqueId(&id));
  world.broadcast("NCCL's unique id", {id.internal, sizeof id.internal}).copy(id.internal, sizeof id.internal);

  const auto inside = world.watchdog().enter("ncclCommInitRank");
  ncclComm_t communicator = nullptr;
  check(ncclCommInitRank(&communicator, size(), id, rank()));
  comm_.emplace(world.watchdog(), communicator);
  int device = 0;
  check(cudaGetDevice(&device));
  watcher_ = std::jthread([this, device](const std::stop_token& stop) { watch(stop, device); });
}

NcclCommunicator::~NcclCommunicator() {
  const auto inside = watchdog().enter("ncclCommDestroy");
  comm_.reset();
}

// An event behind the operation that was just queued, for watch().
void NcclCommunicator::watch_last() {
  const std::uint64_t number = queued_.load(std::memory_order_relaxed);
  Watched& last = watched_[number % watched_.size()];
  if (number >= done_.load(std::memory_order_acquire) + watched_.size())  // CUDA itself queues only so many kernels
    poll("an earlier operation", [&] { return cudaEventQuery(last.done.get()); });
  const Watchdog::Announced announced = watchdog().last();
  last.name.store(announced.name, std::memory_order_relaxed);
  last.peer.store(announced.peer, std::memory_order_relaxed);
  last.collectives.store(announced.collectives, std::memory_order_relaxed);
  last.done.record(stream_.get());
  queued_.store(number + 1, std::memory_order_release);
}

// The host may wait for the GPU in a call that nothing announces, such as cudaStreamSynchronize. So this thread
// announces the oldest operation that the GPU has not done; its time includes the work on the GPU before it. Not the
// watchdog's thread does it: a query may wait for a lock of the driver, and the heartbeats must not.
void NcclCommunicator::watch(const std::stop_token& stop, int device) {
  if (cudaSetDevice(device) != cudaSuccess) return;
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any tick;
  for (std::uint64_t done = 0; !tick.wait_for(lock, stop, 100ms, [&] { return stop.stop_requested(); });) {
    const std::uint64_t queued = queued_.load(std::memory_order_acquire);
    done = std::max(done, queued - std::min<std::uint64_t>(queued, watched_.size()));
    const auto oldest = [&]() -> Watched& { return watched_[done % watched_.size()]; };
    // An error of the GPU ends the work; the caller finds it.
    while (done < queued && cudaEventQuery(oldest().done.get()) != cudaErrorNotReady) ++done;
    done_.store(done, std::memory_order_release);
    if (done < queued)
      watchdog().set_outstanding({oldest().name, oldest().peer, oldest().collectives}, done + 1);
    else
      watchdog().set_outstanding({}, 0);
  }
  watchdog().set_outstanding({}, 0);
}

// Waits on the host until done() is cudaSuccess; NCCL's own errors, such as a lost peer, end the wait.
template <class Function>
void NcclCommunicator::poll(const char* what, Function&& done) {
  Deadline deadline(world().timeout() + 15s);
  cudaError_t state = done();
  for (int polls = 0; state == cudaErrorNotReady; ++polls, state = done()) {
    ncclResult_t code = ncclSuccess;
    comm_->use([&](ncclComm_t comm) { return ncclCommGetAsyncError(comm, &code); });
    check(code);
    if (deadline.passed()) throw std::runtime_error(std::string(what) + ": the GPU did not finish before the deadline");
    if (polls < 1000)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(50us);  // leaves the core to others during a long wait
  }
  check(state);
}

void NcclCommunicator::synchronize() {
  require_waits();
  const auto inside = watchdog().enter("synchronize");
  poll("synchronize", [this] { return cudaStreamQuery(stream_.get()); });
  poll("synchronize", [this] { return cudaStreamQuery(callers_); });
}

}  // namespace

std::optional<int> own_gpus(World& world, int each) {
  const int devices = device_count();
  const int first = devices >= world.local_size() * each ? world.local_rank() * each : 0;
  // As NCCL identifies GPUs, which refuses two ranks on one: NCCL_HOSTID is what it takes instead of the host's name.
  const char* id = std::getenv("NCCL_HOSTID");
  const std::string host = id ? id : host_name();
  std::string gpus_here;  // a line per GPU
  for (int device = first; device < first + each && devices >= each; ++device) {
    char pci[32];
    check(cudaDeviceGetPCIBusId(pci, sizeof pci, device));
    gpus_here += host + " GPU " + pci + "\n";
  }
  const bool yes = world.combine_on_rank_0("GPUs", gpus_here, [&](const std::vector<std::string>& ranks) {
    std::set<std::string_view> different;
    for (const std::string_view gpus : ranks)
      for (std::size_t begin = 0, end; (end = gpus.find('\n', begin)) != gpus.npos; begin = end + 1)
        different.insert(gpus.substr(begin, end - begin));
    return different.size() == ranks.size() * static_cast<std::size_t>(each) ? "yes" : "no";
  }) == "yes";
  return yes ? std::optional(first) : std::nullopt;
}

int require_own_gpus(World& world, int each) {
  int devices = device_count();
  if (devices == 0)
    throw HardwareAbsent("--backend nccl: " + host_name() + " has no GPU that can be used (" +
                         cudaGetErrorString(cudaGetDeviceCount(&devices)) + ")");
  if (const std::optional<int> first = own_gpus(world, each)) return *first;
  throw HardwareAbsent("--backend nccl: NCCL needs one GPU per rank, and " + host_name() + " shows " +
                       std::to_string(devices) + " GPU(s) to this one of " + std::to_string(world.local_size()) +
                       " process(es) with " + std::to_string(each) + " rank(s) each: start fewer ranks per node");
}

std::unique_ptr<Communicator> make_nccl(World& world, int device) {
  check(cudaSetDevice(device));
  return std::make_unique<NcclCommunicator>(world);
}

}  // namespace multinode
