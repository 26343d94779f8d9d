#include "ranks_host.hpp"

#include <multinode/base/seconds.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/communicator/mpi_types.hpp>
#include <multinode/net/address.hpp>

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <array>
#include <climits>
#include <deque>
#include <memory>

namespace perf {

namespace {

using multinode::check;

class MpiRanks : public HostRanks {
 public:
  MpiRanks(multinode::World& world, const Usage& usage)
      : HostRanks(world, usage, "mpi"), calls_(usage.mpi_calls), comm_(world, group()[0]) {}

  multinode::Backend backend() const override { return multinode::Backend::mpi; }
  std::size_t largest_count() const override { return INT_MAX; }
  bool has_in_place(const Collective& collective) const override {
    return collective.mpi_in_place &&
           (calls_ == MpiCalls::blocking || collective.mpi_forms != MpiForms::point_to_point);
  }

  std::string refusal(const Collective& collective, Redop redop) const override {
    if (redop == Redop::avg) return "MPI has no average: use -o sum";
    if (redop == Redop::mulsum) return "MPI has no sum with factors: use -o sum";
    if (calls_ == MpiCalls::nonblocking && collective.mpi_forms == MpiForms::blocking)
      return "--mpi-calls: this collective has no non-blocking form";
    return "";
  }

  Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) override {
    MpiCall call = call_after_barrier(collective, operation);
    Samples seconds(1, std::vector<double>(static_cast<std::size_t>(samples)));
    std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    call.form = calls_;
    call.requests = requests.data();
    time(collective, seconds[0], calls, 0, [&] {
      collective.mpi(call);
      if (calls_ != MpiCalls::blocking) check(MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE));
    });
    return seconds;
  }

 private:
  MpiCall call_after_barrier(const Collective& collective, const Operation& operation) {
    auto call = call_of<MpiCall>(collective, operation, 0, begin(0, Buffer::in), begin(0, Buffer::both));
    call.count = static_cast<int>(operation.count);
    call.bytes = operation.block_bytes();
    call.type = types_.type(operation.type);
    call.op = types_.operation(operation.type, reduction_of(operation.redop));
    call.comm = comm_.get();
    const auto inside = world().watchdog().enter("MPI_Barrier");
    check(MPI_Barrier(call.comm));
    return call;
  }

  MpiCalls calls_;
  multinode::MpiComm comm_;
  multinode::MpiTypes types_;
};

#ifdef MULTINODE_HAVE_CUDA
bool mpi_knows_cuda() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)  // Open MPI
  return MPIX_Query_cuda_support() == 1;
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH
  int supported = 0;
  check(MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported));
  return supported != 0;
#else
  return false;
#endif
}

// Ranks whose buffers are in GPU memory. The processes of a node use its GPUs in turn.
class DeviceMpiRanks : public MpiRanks {
 public:
  DeviceMpiRanks(multinode::World& world, const Usage& usage)
      : MpiRanks(world, usage), usage_(usage), gpus_(multinode::device_count()) {
    if (!mpi_knows_cuda())
      throw multinode::UsageError(
          "--memory device: this MPI was built without CUDA and cannot read GPU memory: leave it out, or use "
          "--backend nccl");
    if (gpus_ == 0)
      throw multinode::HardwareAbsent("--memory device: " + multinode::host_name() + " has no GPU that can be used");
    device_ = world.local_rank() % gpus_;
    check(cudaSetDevice(device_));
  }

  std::string device(int) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device_));
    return "gpu " + std::to_string(device_) + ", " + properties.name;
  }

  std::string refusal(const Collective& collective, Redop redop) const override {
    if (collective.reduces && usage_.mpi_calls != MpiCalls::blocking)
      return "--memory device: MPI reduces in GPU memory by blocking calls only: leave out --mpi-calls";
    return MpiRanks::refusal(collective, redop);
  }

  std::size_t available_memory() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free / static_cast<std::size_t>((world().local_size() + gpus_ - 1) / gpus_);
  }

  void allocate(std::size_t in_bytes, std::size_t both_bytes) override {
    for (const std::size_t bytes : {in_bytes, both_bytes}) {
      auto& memory = memory_.emplace_back(bytes + usage_.offset * 8 + 1);  // 8: of the widest element
      check(cudaMemset(memory.data(), 1, memory.size()));
    }
    check(cudaDeviceSynchronize());
  }

  void write(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& fill) override {
    const auto host = std::make_unique_for_overwrite<std::byte[]>(bytes);
    fill({host.get(), bytes});
    check(cudaMemcpy(begin(local, buffer) + offset, host.get(), bytes, cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());  // cudaMemcpy may return before the data has arrived
  }

  void read(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& look) override {
    const auto host = std::make_unique_for_overwrite<std::byte[]>(bytes);
    check(cudaMemcpy(host.get(), begin(local, buffer) + offset, bytes, cudaMemcpyDeviceToHost));
    look({host.get(), bytes});
  }

 private:
  std::byte* begin(int, Buffer buffer) const override {
    return memory_[static_cast<std::size_t>(buffer)].data() + shift();
  }

  const Usage usage_;
  const int gpus_;
  int device_ = 0;
  std::deque<multinode::DeviceBuffer<std::byte>> memory_;  // by Buffer
};
#endif

}  // namespace

std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, const Usage& usage) {
  if (usage.threads * usage.ranks_per_thread != 1)
    throw multinode::UsageError(
        "-t and -g: MPI has one rank per process: start more with mpirun -n, or use --backend gloo");
  if (!usage.device_memory) return std::make_unique<MpiRanks>(world, usage);
#ifdef MULTINODE_HAVE_CUDA
  return std::make_unique<DeviceMpiRanks>(world, usage);
#else
  throw multinode::UsageError("--memory device: this build has no CUDA");
#endif
}

}  // namespace perf
