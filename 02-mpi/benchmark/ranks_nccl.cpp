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
using multinode::UsageError;

// NCCL calls between ncclGroupStart and ncclGroupEnd become one. The destructor ends the group if a call throws: an
// open group would swallow an abort.
class Group {
 public:
  Group() { check(ncclGroupStart()); }
  ~Group() {
    if (open_) ncclGroupEnd();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end() {
    open_ = false;
    check(ncclGroupEnd());
  }

 private:
  bool open_ = true;
};

// An event that takes the time at a point of a stream.
struct Mark : multinode::Event {
  Mark() : Event(cudaEventDefault) {}
  double seconds_since(const Mark& before) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before.get(), get()));
    return milliseconds / 1e3;
  }
};

// A CUDA graph of what function() puts on the stream; launch() puts it there again.
class Graph {
 public:
  // Captures the calls of this thread only; other threads continue as usual.
  template <class Function>
  Graph(cudaStream_t stream, Function&& function) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    function();
    cudaGraph_t graph{};
    check(cudaStreamEndCapture(stream, &graph));
    const cudaError_t code = cudaGraphInstantiateWithFlags(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(code);
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_{};
};

// One rank's GPU.
struct Gpu {
  explicit Gpu(int number) : device(selected(number)) {}
  static int selected(int number) {
    check(cudaSetDevice(number));
    return number;
  }
  void select() const { check(cudaSetDevice(device)); }
  std::size_t free_memory() const {
    select();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free;
  }

  int device;  // first member: the constructors of the others use the selected GPU
  multinode::Stream stream;
  multinode::DeviceBuffer<std::uint8_t> one{1};  // what a barrier reduces
  std::array<std::unique_ptr<multinode::DeviceBuffer<std::byte>>, 2> buffers;
};

class NcclRanks : public Ranks {
 public:
  NcclRanks(multinode::World& world, const Usage& usage, int first_device) : Ranks(world, usage), usage_(usage) {
    for (int local = 0; local < this->local(); ++local) gpus_.push_back(std::make_unique<Gpu>(first_device + local));

    ncclUniqueId id{};
    const bool leads = world.rank() == group()[0];
    if (leads) check(ncclGetUniqueId(&id));
    const auto ids = world.gather("NCCL's unique id", {id.internal, leads ? sizeof id.internal : 0});
    ids[static_cast<std::size_t>(group()[0])].copy(id.internal, sizeof id.internal);
    communicators_.emplace(world.watchdog(), connected(id));
  }

  ~NcclRanks() override {
    if (std::uncaught_exceptions() > exceptions_) return;
    const auto inside = world().watchdog().enter("ncclCommDestroy");
    communicators_.reset();
  }

  multinode::Backend backend() const override { return multinode::Backend::nccl; }
  bool has_in_place(const Collective& collective) const override { return collective.nccl_in_place; }
  bool has_average() const override { return true; }

  std::string device(int local) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, gpu(local).device));
    return "gpu " + std::to_string(gpu(local).device) + ", " + properties.name;
  }

  std::size_t available_memory() const override {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const auto& gpu : gpus_) least = std::min(least, gpu->free_memory());
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
    Samples seconds(gpus_.size(), std::vector<double>(static_cast<std::size_t>(samples)));
    each_thread(usage_.threads,
                [&](int thread) { measure(collective, operation, calls, thread * usage_.ranks_per_thread, seconds); });
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
    const auto inside = announce(0, "ncclCommInitRankConfig");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    std::vector<ncclComm_t> communicators(gpus_.size());
    Group group;
    for (int local = 0; local < this->local(); ++local) {
      gpu(local).select();
      check(ncclCommInitRankConfig(&communicators[static_cast<std::size_t>(local)], size(), id, first() + local,
                                   &config));
    }
    group.end();
    return communicators;
  }

  // Waits until query() is cudaSuccess. NCCL's own errors, such as a lost peer, end the wait.
  template <class Query>
  void wait(int local, Query&& query) {
    cudaError_t state = query();
    for (; state == cudaErrorNotReady; state = query()) {
      {
        const auto lock = communicators_->lock();
        ncclResult_t code = ncclSuccess;
        check(ncclCommGetAsyncError((*communicators_)[static_cast<std::size_t>(local)], &code));
        check(code);
      }
      std::this_thread::yield();
    }
    check(state);
  }

  void wait_for_streams(int first) {
    for (int local = first; local < first + usage_.ranks_per_thread; ++local) {
      gpu(local).select();
      wait(local, [&] { return cudaStreamQuery(stream(local)); });
    }
  }

  void barrier(int first) {
    {
      const auto lock = communicators_->lock();
      Group group;
      for (int local = first; local < first + usage_.ranks_per_thread; ++local)
        check(ncclAllReduce(gpu(local).one.data(), gpu(local).one.data(), 1, ncclUint8, ncclMax,
                            (*communicators_)[static_cast<std::size_t>(local)], stream(local)));
      group.end();
    }
    wait_for_streams(first);
  }

  // The ranks of one thread, whose first is local rank `first`.
  void measure(const Collective& collective, const Operation& operation, int calls, int first, Samples& seconds) {
    std::optional<multinode::Watchdog::Operation> inside;  // only the first thread announces, for the whole process
    const auto enter = [&](const char* name) {
      inside.reset();
      if (first == 0) inside.emplace(world().watchdog(), name, multinode::everyone);
    };

    std::vector<NcclCall> ranks;
    gpu(first).select();
    for (int local = first; local < first + usage_.ranks_per_thread; ++local) {
      auto call = call_of<NcclCall>(collective, operation, local, begin(local, Buffer::in), begin(local, Buffer::both));
      call.count = operation.count;
      call.bytes = operation.block_bytes();
      call.type = multinode::nccl_type(operation.type);
      call.op = multinode::nccl_operation(reduction_of(operation.redop));
      call.comm = (*communicators_)[static_cast<std::size_t>(local)];
      call.stream = stream(local);
      ranks.push_back(call);
    }

    const int launches = operation.once ? 1 : usage_.graph_launches;
    const auto issue = [&] {  // one call
      const auto lock = communicators_->lock();
      if (ranks.size() == 1) return check(collective.nccl(ranks[0]));
      Group group;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        gpu(first + static_cast<int>(rank)).select();
        check(collective.nccl(ranks[rank]));
      }
      group.end();
    };
    std::optional<Graph> graph;
    if (usage_.graph_launches > 0) {
      enter("capturing a CUDA graph");
      graph.emplace(stream(first), [&] {
        for (int call = 0; call < calls; ++call) issue();
      });
    }
    const double operations = 1.0 * calls * (graph ? launches : 1);

    // Events between the samples; at most `depth` of them are queued.
    constexpr std::size_t depth = 128;
    const std::size_t samples = seconds[static_cast<std::size_t>(first)].size();
    std::vector<std::vector<Mark>> marks;  // of each rank
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      gpu(first + static_cast<int>(i)).select();
      marks.emplace_back(std::min(depth, samples + 1));
    }
    const auto mark = [&](std::size_t number) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        gpu(first + static_cast<int>(i)).select();
        marks[i][number % depth].record(ranks[i].stream);
      }
    };
    std::size_t finished = 0;  // samples
    const auto finish_one = [&] {
      enter(collective.name);
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const int local = first + static_cast<int>(i);
        const Mark& after = marks[i][(finished + 1) % depth];
        wait(local, [&] { return cudaEventQuery(after.get()); });
        seconds[static_cast<std::size_t>(local)][finished] =
            after.seconds_since(marks[i][finished % depth]) / operations;
      }
      ++finished;
    };

    enter("the barrier before the calls");
    barrier(first);
    mark(0);
    for (std::size_t sample = 0; sample < samples; ++sample) {
      if (sample + 1 - finished >= depth) finish_one();
      enter(collective.name);
      if (graph)
        for (int launch = 0; launch < launches; ++launch) graph->launch(stream(first));
      else
        for (int call = 0; call < calls; ++call) issue();
      mark(sample + 1);
    }
    while (finished < samples) finish_one();
  }

  const Usage usage_;
  int exceptions_ = std::uncaught_exceptions();
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::optional<multinode::NcclHandle> communicators_;
};

}  // namespace

std::unique_ptr<Ranks> make_nccl_ranks(multinode::World& world, const Usage& usage) {
  if (usage.graph_launches > 0 && usage.ranks_per_thread > 1)
    throw UsageError(
        "-G: launching a graph may block, and with -g one thread launches for several GPUs: use -t, or more processes");
  return std::make_unique<NcclRanks>(world, usage,
                                     multinode::require_own_gpus(world, usage.threads * usage.ranks_per_thread));
}

}  // namespace perf
