#include "ranks.hpp"

#include <multinode/communicator.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/communicator/nccl_handle.hpp>

#include <fmt/core.h>

#include <chrono>
#include <optional>
#include <thread>

#define HAVE_REGISTRATION (NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0))

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

// A device buffer; allocated by NCCL if `by_nccl`, so that NCCL can register it.
class Memory {
 public:
  Memory(std::size_t bytes, bool by_nccl) : bytes_(bytes), by_nccl_(by_nccl) {
#if HAVE_REGISTRATION
    if (by_nccl)
      check(ncclMemAlloc(&data_, bytes));
    else
#endif
      check(cudaMalloc(&data_, bytes));
    check(cudaMemset(data_, 1, bytes));
  }
  ~Memory() {
#if HAVE_REGISTRATION
    if (by_nccl_)
      ncclMemFree(data_);
    else
#endif
      cudaFree(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return bytes_; }

  // NCCL's handles.
  void* registered = nullptr;  // -R 1
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  ncclWindow_t window = nullptr;  // -R 2
#endif

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
  bool by_nccl_;
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
  std::array<std::unique_ptr<Memory>, 2> buffers;
};

class NcclRanks : public Ranks {
 public:
  NcclRanks(multinode::World& world, const Usage& usage, int first_device) : Ranks(world, usage), usage_(usage) {
    for (int local = 0; local < this->local(); ++local) gpus_.push_back(std::make_unique<Gpu>(first_device + local));
    free_at_first_ = gpu(0).free_memory();

    ncclUniqueId id{};
    const bool leads = world.rank() == group()[0];
    if (leads) check(ncclGetUniqueId(&id));
    const auto ids = world.gather("NCCL's unique id", {id.internal, leads ? sizeof id.internal : 0});
    ids[static_cast<std::size_t>(group()[0])].copy(id.internal, sizeof id.internal);
    std::vector<ncclComm_t> communicators(static_cast<std::size_t>(local()));
    if (usage_.parallel_init) {
      each_thread(usage_.threads, [&](int thread) {
        initialize(id, communicators, thread * usage_.ranks_per_thread, usage_.ranks_per_thread);
      });
    } else {
      initialize(id, communicators, 0, local());
    }
    communicators_.emplace(world.watchdog(), std::move(communicators));
    free_with_nccl_ = gpu(0).free_memory();
  }

  ~NcclRanks() override {
    if (std::uncaught_exceptions() > exceptions_) return;
    const auto inside = world().watchdog().enter("ncclCommDestroy");
    try {
      each_buffer([&]([[maybe_unused]] ncclComm_t communicator, [[maybe_unused]] Memory& memory) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
        if (memory.window) check(ncclCommWindowDeregister(communicator, memory.window));
#endif
#if HAVE_REGISTRATION
        if (memory.registered) check(ncclCommDeregister(communicator, memory.registered));
#endif
      });
      communicators_.reset();
    } catch (const std::exception& e) {
      world().watchdog().fail(e.what(), multinode::exit_wrong);
    }
  }

  multinode::Backend backend() const override { return multinode::Backend::nccl; }
  bool has_in_place(const Collective& collective) const override { return collective.nccl_in_place; }
  std::string refusal(const Collective& collective, Redop) const override {
    return collective.nccl ? "" : "the NCCL of this build does not have this collective";
  }

  std::string device(int local) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, gpu(local).device));
    return "gpu " + std::to_string(gpu(local).device) + ", " + properties.name;
  }

  std::string memory_report() const override {
    if (!usage_.memory_report) return "";
    const std::size_t free = gpu(0).free_memory();
    return fmt::format("GPU memory of rank {}: NCCL {} MiB at the start, buffers and NCCL's later needs {} MiB",
                       first(), (free_at_first_ - std::min(free_at_first_, free_with_nccl_)) >> 20,
                       (free_with_nccl_ - std::min(free_with_nccl_, free)) >> 20);
  }

  std::size_t available_memory() const override {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const auto& gpu : gpus_) least = std::min(least, gpu->free_memory());
    return least * gpus_.size();
  }

  void allocate(std::size_t in_bytes, std::size_t both_bytes) override {
    const std::size_t room = usage_.offset * 8 + 1;  // 8: bytes of the widest element; 1: no allocation is empty
    for (const auto& gpu : gpus_) {
      gpu->select();
      for (const auto& [buffer, bytes] : {std::pair(Buffer::in, in_bytes), std::pair(Buffer::both, both_bytes)})
        gpu->buffers[static_cast<std::size_t>(buffer)] =
            std::make_unique<Memory>(bytes + room, usage_.register_buffers > 0);
      check(cudaDeviceSynchronize());  // our streams do not wait for cudaMemset
    }
    if (usage_.register_buffers == 0) return;
    const auto inside = world().watchdog().enter("registering buffers");
    each_buffer([&]([[maybe_unused]] ncclComm_t communicator, [[maybe_unused]] Memory& memory) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
      if (usage_.register_buffers == 2)
        return check(ncclCommWindowRegister(communicator, memory.data(), memory.size(), &memory.window,
                                            NCCL_WIN_COLL_SYMMETRIC));
#endif
#if HAVE_REGISTRATION
      check(ncclCommRegister(communicator, memory.data(), memory.size(), &memory.registered));
#endif
    });
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
  cudaStream_t stream(int local) const { return usage_.default_stream ? nullptr : gpu(local).stream.get(); }
  std::byte* begin(int local, Buffer buffer) const {
    return gpu(local).buffers[static_cast<std::size_t>(buffer)]->data() + shift();
  }

  // Blocking communicators, as in nccl-tests: for every call on a non-blocking one NCCL starts a thread, whose cost
  // would be measured as well. If a call blocks forever, the watchdog ends the process.
  void initialize(const ncclUniqueId& id, std::span<ncclComm_t> communicators, int first, int count) {
    const auto inside = announce(first, "ncclCommInitRankConfig");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    Group group;
    for (int local = first; local < first + count; ++local) {
      gpu(local).select();
      check(ncclCommInitRankConfig(&communicators[static_cast<std::size_t>(local)], size(), id, this->first() + local,
                                   &config));
    }
    group.end();
  }

  // function(communicator, memory), as one group.
  template <class Function>
  void each_buffer(Function&& function) {
    const auto lock = communicators_->lock();
    Group group;
    for (int local = 0; local < this->local(); ++local)
      for (const auto& memory : gpu(local).buffers)
        if (memory) {
          gpu(local).select();
          function((*communicators_)[static_cast<std::size_t>(local)], *memory);
        }
    group.end();
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
      if (operation.redop == Redop::mulsum) {
        const auto lock = communicators_->lock();
        multinode::with_type(operation.type, [&](auto factor) {
          factor = static_cast<decltype(factor)>(premultiplier(call.rank));
          check(ncclRedOpCreatePreMulSum(&call.op, &factor, call.type, ncclScalarHostImmediate, call.comm));
        });
      }
      ranks.push_back(call);
    }

    const int aggregate = operation.once ? 1 : usage_.aggregate;
    const int launches = operation.once ? 1 : usage_.graph_launches;
    const int steps = collective.nccl_steps(size());
    const auto issue = [&] {  // one call
      const auto lock = communicators_->lock();
      for (int step = 0; step < steps; ++step) {
        std::optional<Group> group;
        if (ranks.size() > 1 || aggregate > 1) group.emplace();
        for (int i = 0; i < aggregate; ++i)
          for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
            if (ranks.size() > 1) gpu(first + static_cast<int>(rank)).select();
            ranks[rank].step = step;
            check(collective.nccl(ranks[rank]));
          }
        if (group) group->end();
      }
    };
    std::optional<Graph> graph;
    if (usage_.graph_launches > 0) {
      enter("capturing a CUDA graph");
      graph.emplace(stream(first), [&] {
        for (int call = 0; call < calls; ++call) issue();
      });
    }
    const double operations = 1.0 * calls * aggregate * (graph ? launches : 1);

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
        if (!usage_.host_time)
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
      const auto start = std::chrono::steady_clock::now();
      if (graph) {
        for (int launch = 0; launch < launches; ++launch) graph->launch(stream(first));
      } else {
        for (int call = 0; call < calls; ++call) {
          issue();
          if (usage_.blocking) wait_for_streams(first);
        }
      }
      const std::chrono::duration<double> issued = std::chrono::steady_clock::now() - start;
      if (usage_.host_time)
        for (std::size_t i = 0; i < ranks.size(); ++i)
          seconds[static_cast<std::size_t>(first) + i][sample] = issued.count() / operations;
      mark(sample + 1);
    }
    while (finished < samples) finish_one();

    if (operation.redop == Redop::mulsum) {
      const auto lock = communicators_->lock();
      for (const NcclCall& rank : ranks) check(ncclRedOpDestroy(rank.op, rank.comm));
    }
  }

  const Usage usage_;
  int exceptions_ = std::uncaught_exceptions();
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::optional<multinode::NcclHandle> communicators_;
  std::size_t free_at_first_ = 0, free_with_nccl_ = 0;  // of the first GPU
};

}  // namespace

std::unique_ptr<Ranks> make_nccl_ranks(multinode::World& world, const Usage& usage) {
  if (usage.graph_launches > 0) {
    if (usage.default_stream) throw UsageError("-G: CUDA cannot capture the default stream: leave out -y");
    if (usage.blocking) throw UsageError("-G: nothing can be waited for inside a CUDA graph: leave out -z");
    if (usage.ranks_per_thread > 1)
      throw UsageError(
          "-G: launching a graph may block, and with -g one thread launches for several GPUs: use -t, or "
          "more processes");
  }
  const int needed = usage.register_buffers == 0 ? 0 : usage.register_buffers == 1 ? 19 : 27;
  if (NCCL_MAJOR == 2 && NCCL_MINOR < needed)
    throw UsageError(fmt::format("-R {}: this registration of buffers needs NCCL 2.{}, and this is {}.{}",
                                 usage.register_buffers, needed, NCCL_MAJOR, NCCL_MINOR));
  return std::make_unique<NcclRanks>(world, usage,
                                     multinode::require_own_gpus(world, usage.threads * usage.ranks_per_thread));
}

}  // namespace perf
