#include <multinode/address.hpp>
#include <multinode/communicator_backends.hpp>
#include <multinode/device.hpp>

#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace multinode {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Owns NCCL's communicator, which the watchdog's thread may abort while another thread waits for it.
class Handle {
 public:
  ncclComm_t get() const { return communicator_; }
  ncclComm_t* address() { return &communicator_; }

  void abort() {
    const std::lock_guard lock(mutex_);
    if (communicator_ && !std::exchange(aborted_, true)) ncclCommAbort(communicator_);
  }
  // True for the caller that must destroy it.
  bool retire() {
    const std::lock_guard lock(mutex_);
    return communicator_ && !std::exchange(aborted_, true);
  }

 private:
  std::mutex mutex_;
  bool aborted_ = false;
  ncclComm_t communicator_ = nullptr;
};

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(World& world);
  ~NcclCommunicator() override;
  Backend backend() const override { return Backend::nccl; }
  void set_stream(cudaStream_t stream) override { callers_ = stream; }
  void synchronize() override;

 private:
  // wait() does not block the host: it makes the stream wait that was the caller's when the operation started.
  class Enqueued : public Work::State {
   public:
    Enqueued(cudaStream_t callers, const Stream& own) : callers_(callers) { done_.record(own.get()); }
    void wait() override { done_.hold_back(callers_); }

   private:
    cudaStream_t callers_;
    Event done_;
  };

  Work start(const Call& call) override {
    ready_.record(callers_);
    ready_.hold_back(stream_.get());
    perform(call);
    return Work(std::make_unique<Enqueued>(callers_, stream_));
  }

  // Waits until a call is enqueued: those of a non-blocking communicator may return earlier.
  void enqueued(ncclResult_t code);
  template <class Function>
  void poll(const char* what, Function&& done);

  void do_broadcast(const Block& block, int root) override {
    enqueued(
        ncclBroadcast(block.data, block.data, block.count, nccl_type(block.type), root, comm_->get(), stream_.get()));
  }
  void do_all_reduce(const Block& block, Reduction reduction) override {
    enqueued(ncclAllReduce(block.data, block.data, block.count, nccl_type(block.type), nccl_operation(reduction),
                           comm_->get(), stream_.get()));
  }
  void do_reduce_scatter(const ConstBlock& in, const Block& out, Reduction reduction) override {
    enqueued(ncclReduceScatter(in.data, out.data, out.count, nccl_type(in.type), nccl_operation(reduction),
                               comm_->get(), stream_.get()));
  }
  void do_all_gather(const ConstBlock& in, const Block& out) override {
    enqueued(ncclAllGather(in.data, out.data, in.count, nccl_type(in.type), comm_->get(), stream_.get()));
  }
  void do_send(const ConstBlock& block, int peer) override {
    enqueued(ncclSend(block.data, block.count, nccl_type(block.type), peer, comm_->get(), stream_.get()));
  }
  void do_recv(const Block& block, int peer) override {
    enqueued(ncclRecv(block.data, block.count, nccl_type(block.type), peer, comm_->get(), stream_.get()));
  }
  void do_barrier() override {
    do_all_reduce({one_.data(), 1, DataType::uint8}, Reduction::max);
    poll("barrier", [this] { return cudaStreamQuery(stream_.get()); });
  }

  Stream stream_;
  Event ready_;
  DeviceBuffer<std::uint8_t> one_{1};
  cudaStream_t callers_ = nullptr;
  std::shared_ptr<Handle> comm_ = std::make_shared<Handle>();
};

NcclCommunicator::NcclCommunicator(World& world) : Communicator(world, Carrier::stream) {
  check(cudaMemsetAsync(one_.data(), 0, 1, stream_.get()));
  ncclUniqueId id{};
  if (rank() == 0) check(ncclGetUniqueId(&id));
  const auto ids = world.gather("NCCL's unique id", rank() == 0 ? std::string(id.internal, sizeof id.internal) : "");
  std::memcpy(id.internal, ids[0].data(), sizeof id.internal);

  const auto inside = world.watchdog().enter("ncclCommInitRankConfig");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t code = ncclCommInitRankConfig(comm_->address(), size(), id, rank(), &config);
  world.watchdog().set_abort([comm = comm_] { comm->abort(); });
  enqueued(code);
}

NcclCommunicator::~NcclCommunicator() {
  world().watchdog().set_abort({});
  if (unwinding()) comm_->abort();
  if (!comm_->retire()) return;
  const auto inside = world().watchdog().enter("ncclCommFinalize");
  ncclResult_t state = ncclCommFinalize(comm_->get());
  while (state == ncclInProgress) {
    std::this_thread::sleep_for(100us);
    if (ncclCommGetAsyncError(comm_->get(), &state) != ncclSuccess) break;
  }
  ncclCommDestroy(comm_->get());
}

void NcclCommunicator::enqueued(ncclResult_t code) {
  check(code);
  const auto deadline = Clock::now() + world().timeout() + 15s;  // later than the watchdog's
  while (code == ncclInProgress) {
    if (Clock::now() > deadline) throw std::runtime_error("the NCCL call is still in progress after the deadline");
    std::this_thread::sleep_for(20us);
    check(ncclCommGetAsyncError(comm_->get(), &code));
    check(code);
  }
}

// Waits on the host until done() is cudaSuccess; NCCL's own errors, such as a lost peer, end the wait.
template <class Function>
void NcclCommunicator::poll(const char* what, Function&& done) {
  const auto deadline = Clock::now() + world().timeout() + 15s;
  cudaError_t state = done();
  for (; state == cudaErrorNotReady; state = done()) {
    ncclResult_t code = ncclSuccess;
    check(ncclCommGetAsyncError(comm_->get(), &code));
    check(code);
    if (Clock::now() > deadline)
      throw std::runtime_error(std::string(what) + ": the GPU did not finish before the deadline");
    std::this_thread::yield();
  }
  check(state);
}

void NcclCommunicator::synchronize() {
  const auto inside = world().watchdog().enter("synchronize");
  poll("synchronize", [this] { return cudaStreamQuery(stream_.get()); });
  poll("synchronize", [this] { return cudaStreamQuery(callers_); });
}

}  // namespace

std::unique_ptr<Communicator> make_nccl(World& world) {
  int devices = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&devices); code != cudaSuccess)
    throw HardwareAbsent("--backend nccl: " + host_name() + " has no GPU that can be used (" +
                         cudaGetErrorString(code) + ")");
  if (devices < world.local_size())
    throw HardwareAbsent("--backend nccl: " + host_name() + " has " + std::to_string(devices) + " GPU(s) for " +
                         std::to_string(world.local_size()) +
                         " processes: NCCL needs one GPU per process; start fewer processes per node");
  check(cudaSetDevice(world.local_rank() % devices));
  return std::make_unique<NcclCommunicator>(world);
}

}  // namespace multinode
