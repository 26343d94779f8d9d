#include "ranks.hpp"

#include <multinode/communicator.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/communicator/nccl_handle.hpp>

#include <algorithm>
#include <optional>
#include <thread>

namespace perf {

namespace {

using multinode::check;

// An event that takes the time at a point of a stream.
struct Mark : multinode::Event {
  Mark() : Event(cudaEventDefault) {}
  double seconds_since(const Mark& before) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before.get(), get()));
    return milliseconds / 1e3;
  }
};

// One rank's GPU.
struct Gpu {
  explicit Gpu(int number) : device(selected(number)) {}
  static int selected(int number) {
    check(cudaSetDevice(number));
    return number;
  }
  void select() const { check(cudaSetDevice(device)); }

  int device;  // first member: the constructors of the others use the selected GPU
  multinode::Stream stream;
  multinode::DeviceBuffer<std::uint8_t> one{1};  // what a barrier reduces
  std::array<std::unique_ptr<multinode::DeviceBuffer<std::byte>>, 2> buffers;
};

class NcclRanks : public Ranks {
 public:
  NcclRanks(multinode::World& world, int of_process, int first_device) : Ranks(world, of_process) {
    for (int local = 0; local < this->local(); ++local) gpus_.push_back(std::make_unique<Gpu>(first_device + local));

    ncclUniqueId id{};
    if (world.rank() == 0) check(ncclGetUniqueId(&id));
    world.broadcast("NCCL's unique id", {id.internal, sizeof id.internal}).copy(id.internal, sizeof id.internal);
    communicators_.emplace(world.watchdog(), connected(id));
  }

  ~NcclRanks() override {
    const auto inside = world().watchdog().enter("ncclCommDestroy");
    communicators_.reset();
  }

  multinode::Backend backend() const override { return multinode::Backend::nccl; }
  bool has_in_place(const Collective& collective) const override { return collective.nccl_in_place; }

  std::string device(int local) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, gpu(local).device));
    return "gpu " + std::to_string(gpu(local).device) + ", " + properties.name;
  }

  std::size_t available_memory() const override {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const auto& gpu : gpus_) {
      gpu->select();
      std::size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total));
      least = std::min(least, free);
    }
    return least * gpus_.size();
  }

  void allocate(std::size_t in_bytes, std::size_t both_bytes) override {
    for (const auto& gpu : gpus_) {
      gpu->select();
      for (const auto& [buffer, bytes] : {std::pair(Buffer::in, in_bytes), std::pair(Buffer::both, both_bytes)}) {
        auto& memory = gpu->buffers[static_cast<std::size_t>(buffer)];
        memory = std::make_unique<multinode::DeviceBuffer<std::byte>>(std::max<std::size_t>(bytes, 1));
        check(cudaMemset(memory->data(), 1, memory->size()));
      }
      check(cudaDeviceSynchronize());  // our streams do not wait for cudaMemset
    }
  }

  void write(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& fill) override {
    const auto host = std::make_unique_for_overwrite<std::byte[]>(bytes);
    fill({host.get(), bytes});
    gpu(local).select();
    check(cudaMemcpyAsync(begin(local, buffer) + offset, host.get(), bytes, cudaMemcpyHostToDevice, stream(local)));
    check(cudaStreamSynchronize(stream(local)));
  }

  void read(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& look) override {
    const auto host = std::make_unique_for_overwrite<std::byte[]>(bytes);
    gpu(local).select();
    check(cudaMemcpyAsync(host.get(), begin(local, buffer) + offset, bytes, cudaMemcpyDeviceToHost, stream(local)));
    check(cudaStreamSynchronize(stream(local)));
    look({host.get(), bytes});
  }

  Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) override {
    std::optional<multinode::Watchdog::Operation> inside;
    const auto enter = [&](const char* name) {
      inside.reset();
      inside.emplace(world().watchdog(), name, multinode::everyone);
    };

    std::vector<NcclCall> ranks;
    for (int local = 0; local < this->local(); ++local) {
      auto call = call_of<NcclCall>(collective, operation, local, begin(local, Buffer::in), begin(local, Buffer::both));
      call.type = multinode::nccl_type(operation.type);
      call.comm = (*communicators_)[static_cast<std::size_t>(local)];
      call.stream = stream(local);
      ranks.push_back(call);
    }
    const auto issue = [&] {  // one call
      const auto lock = communicators_->lock();
      if (ranks.size() == 1) return check(collective.nccl(ranks[0]));
      multinode::NcclGroup group;
      for (int local = 0; local < this->local(); ++local) {
        gpu(local).select();
        check(collective.nccl(ranks[static_cast<std::size_t>(local)]));
      }
      check(group.end());
    };

    // Events between the samples; at most `depth` of them are queued.
    constexpr std::size_t depth = 128;
    const auto wanted = static_cast<std::size_t>(samples);
    Samples seconds(gpus_.size(), std::vector<double>(wanted));
    std::vector<std::vector<Mark>> marks;  // of each rank
    for (const auto& gpu : gpus_) {
      gpu->select();
      marks.emplace_back(std::min(depth, wanted + 1));
    }
    const auto mark = [&](std::size_t number) {
      for (std::size_t i = 0; i < gpus_.size(); ++i) {
        gpus_[i]->select();
        marks[i][number % depth].record(ranks[i].stream);
      }
    };
    std::size_t finished = 0;  // samples
    const auto finish_one = [&] {
      enter(collective.name);
      for (std::size_t i = 0; i < gpus_.size(); ++i) {
        const Mark& after = marks[i][(finished + 1) % depth];
        wait(i, [&] { return cudaEventQuery(after.get()); });
        seconds[i][finished] = after.seconds_since(marks[i][finished % depth]) / calls;
      }
      ++finished;
    };

    enter("the barrier before the calls");
    barrier();
    mark(0);
    for (std::size_t sample = 0; sample < wanted; ++sample) {
      if (sample + 1 - finished >= depth) finish_one();
      enter(collective.name);
      for (int call = 0; call < calls; ++call) issue();
      mark(sample + 1);
    }
    while (finished < wanted) finish_one();
    return seconds;
  }

 private:
  Gpu& gpu(int local) const { return *gpus_[static_cast<std::size_t>(local)]; }
  cudaStream_t stream(int local) const { return gpu(local).stream.get(); }
  std::byte* begin(int local, Buffer buffer) const {
    return gpu(local).buffers[static_cast<std::size_t>(buffer)]->data();
  }

  // Blocking communicators, as in nccl-tests: for every call on a non-blocking one NCCL starts a thread, whose cost
  // would be measured as well. If a call blocks forever, the watchdog ends the process.
  std::vector<ncclComm_t> connected(const ncclUniqueId& id) {
    const auto inside = world().watchdog().enter("ncclCommInitRankConfig");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    std::vector<ncclComm_t> communicators(gpus_.size());
    multinode::NcclGroup group;
    for (int local = 0; local < this->local(); ++local) {
      gpu(local).select();
      check(ncclCommInitRankConfig(&communicators[static_cast<std::size_t>(local)], size(), id, first() + local,
                                   &config));
    }
    check(group.end());
    return communicators;
  }

  // Waits until query() is cudaSuccess. NCCL's own errors, such as a lost peer, end the wait.
  template <class Query>
  void wait(std::size_t local, Query&& query) {
    cudaError_t state = query();
    for (; state == cudaErrorNotReady; state = query()) {
      {
        const auto lock = communicators_->lock();
        ncclResult_t code = ncclSuccess;
        check(ncclCommGetAsyncError((*communicators_)[local], &code));
        check(code);
      }
      std::this_thread::yield();
    }
    check(state);
  }

  void barrier() {
    {
      const auto lock = communicators_->lock();
      multinode::NcclGroup group;
      for (std::size_t i = 0; i < gpus_.size(); ++i) {
        std::uint8_t* const one = gpus_[i]->one.data();
        check(ncclAllReduce(one, one, 1, ncclUint8, ncclMax, (*communicators_)[i], gpus_[i]->stream.get()));
      }
      check(group.end());
    }
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      gpus_[i]->select();
      wait(i, [&] { return cudaStreamQuery(gpus_[i]->stream.get()); });
    }
  }

  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::optional<multinode::NcclHandle> communicators_;
};

}  // namespace

std::unique_ptr<Ranks> make_nccl_ranks(multinode::World& world, int local) {
  return std::make_unique<NcclRanks>(world, local, multinode::require_own_gpus(world, local));
}

}  // namespace perf
