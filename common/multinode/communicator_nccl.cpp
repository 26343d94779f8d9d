#include <multinode/address.hpp>
#include <multinode/communicator_backends.hpp>
#include <multinode/nccl_handle.hpp>

#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

namespace multinode {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(World& world);
  ~NcclCommunicator() override;
  Backend backend() const override { return Backend::nccl; }
  void set_stream(cudaStream_t stream) override { callers_ = stream; }
  void synchronize() override;

 private:
  using Events = std::vector<std::unique_ptr<Event>>;

  // wait() does not block the host: it makes the stream wait that was the caller's when the operation started. The
  // event goes back to those that the next operations use.
  class Enqueued : public Work::State {
   public:
    Enqueued(cudaStream_t callers, const Stream& own, std::shared_ptr<Events> unused)
        : callers_(callers), unused_(std::move(unused)) {
      if (unused_->empty()) unused_->push_back(std::make_unique<Event>());
      done_ = std::move(unused_->back());
      unused_->pop_back();
      done_->record(own.get());
    }
    ~Enqueued() override { unused_->push_back(std::move(done_)); }
    void wait() override { done_->hold_back(callers_); }

   private:
    cudaStream_t callers_;
    std::shared_ptr<Events> unused_;
    std::unique_ptr<Event> done_;
  };

  Work start(const Call& call) override {
    ready_.record(callers_);
    ready_.hold_back(stream_.get());
    perform(call);
    return Work(std::make_unique<Enqueued>(callers_, stream_, unused_));
  }

  template <class Function>
  void poll(const char* what, Function&& done);

  void do_broadcast(const Block& block, int root) override {
    comm_->use([&](ncclComm_t comm) {
      return ncclBroadcast(block.data, block.data, block.count, nccl_type(block.type), root, comm, stream_.get());
    });
  }
  void do_all_reduce(const Block& block, Reduction reduction) override {
    comm_->use([&](ncclComm_t comm) {
      return ncclAllReduce(block.data, block.data, block.count, nccl_type(block.type), nccl_operation(reduction), comm,
                           stream_.get());
    });
  }
  void do_reduce_scatter(const ConstBlock& in, const Block& out, Reduction reduction) override {
    comm_->use([&](ncclComm_t comm) {
      return ncclReduceScatter(in.data, out.data, out.count, nccl_type(in.type), nccl_operation(reduction), comm,
                               stream_.get());
    });
  }
  void do_all_gather(const ConstBlock& in, const Block& out) override {
    comm_->use([&](ncclComm_t comm) {
      return ncclAllGather(in.data, out.data, in.count, nccl_type(in.type), comm, stream_.get());
    });
  }
  void do_send(const ConstBlock& block, int peer) override {
    comm_->use([&](ncclComm_t comm) {
      return ncclSend(block.data, block.count, nccl_type(block.type), peer, comm, stream_.get());
    });
  }
  void do_recv(const Block& block, int peer) override {
    comm_->use([&](ncclComm_t comm) {
      return ncclRecv(block.data, block.count, nccl_type(block.type), peer, comm, stream_.get());
    });
  }
  void do_barrier() override {
    do_all_reduce({one_.data(), 1, DataType::uint8}, Reduction::max);
    poll("barrier", [this] { return cudaStreamQuery(stream_.get()); });
  }

  Stream stream_;
  Event ready_;
  std::shared_ptr<Events> unused_ = std::make_shared<Events>();
  DeviceBuffer<std::uint8_t> one_{1};
  cudaStream_t callers_ = nullptr;
  std::optional<NcclHandle> comm_;
};

NcclCommunicator::NcclCommunicator(World& world) : Communicator(world, Carrier::stream) {
  check(cudaMemsetAsync(one_.data(), 0, 1, stream_.get()));
  ncclUniqueId id{};
  if (rank() == 0) check(ncclGetUniqueId(&id));
  const auto ids = world.gather("NCCL's unique id", rank() == 0 ? std::string(id.internal, sizeof id.internal) : "");
  std::memcpy(id.internal, ids[0].data(), sizeof id.internal);

  const auto inside = world.watchdog().enter("ncclCommInitRank");
  ncclComm_t communicator = nullptr;
  check(ncclCommInitRank(&communicator, size(), id, rank()));
  comm_.emplace(world.watchdog(), communicator);
}

NcclCommunicator::~NcclCommunicator() {
  const auto inside = world().watchdog().enter("ncclCommDestroy");
  comm_.reset();
}

// Waits on the host until done() is cudaSuccess; NCCL's own errors, such as a lost peer, end the wait.
template <class Function>
void NcclCommunicator::poll(const char* what, Function&& done) {
  const auto deadline = Clock::now() + world().timeout() + 15s;
  cudaError_t state = done();
  for (; state == cudaErrorNotReady; state = done()) {
    ncclResult_t code = ncclSuccess;
    comm_->use([&](ncclComm_t comm) { return ncclCommGetAsyncError(comm, &code); });
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

bool one_gpu_each(World& world, bool stand_ins) {
  std::string own;
  if (const int devices = device_count(); devices > 0 && (stand_ins || !stand_in())) {
    char pci[32];
    check(cudaDeviceGetPCIBusId(pci, sizeof pci, world.local_rank() % devices));
    own = host_name() + " GPU " + pci;
  }
  const std::vector<std::string> gpus = world.gather("GPUs", own);
  const std::set<std::string_view> different(gpus.begin(), gpus.end());
  return different.size() == gpus.size() && !different.contains("");
}

void require_one_gpu_each(World& world) {
  int devices = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&devices); code != cudaSuccess)
    throw HardwareAbsent("--backend nccl: " + host_name() + " has no GPU that can be used (" +
                         cudaGetErrorString(code) + ")");
  if (!one_gpu_each(world, true))
    throw HardwareAbsent("--backend nccl: NCCL needs one GPU per process, and " + host_name() + " shows " +
                         std::to_string(devices) + " GPU(s) to this one of " + std::to_string(world.local_size()) +
                         " processes: start fewer processes per node");
}

std::unique_ptr<Communicator> make_nccl(World& world) {
  check(cudaSetDevice(world.local_rank() % device_count()));
  return std::make_unique<NcclCommunicator>(world);
}

}  // namespace multinode
