#include "ranks_host.hpp"

#include <multinode/communicator.hpp>

#include <algorithm>
#include <fstream>
#include <thread>

namespace perf {

double Ranks::measure_bare_loop(const Collective&, const Operation&, int) {
  throw multinode::UsageError("--self-check compares with a bare loop of MPI calls: use --backend mpi");
}

void Ranks::each_thread(int threads, const std::function<void(int)>& function) const {
  if (threads == 1) return function(0);
  const auto guarded = [&](int thread) {
    try {
      function(thread);
    } catch (const std::exception& e) {
      world().watchdog().fail(e.what(), multinode::exit_wrong);
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(guarded, thread);
  guarded(0);
  const auto inside = world().watchdog().enter("waiting for this process's other threads");
  others.clear();
}

std::size_t available_host_memory(const multinode::World& world) {
  std::size_t free = std::numeric_limits<std::size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, rest; meminfo >> key; std::getline(meminfo, rest))
    if (std::size_t kib = 0; key == "MemAvailable:" && meminfo >> kib) free = kib * 1024;
  // Control groups, version 2: as a container sees its own.
  std::size_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used)
    free = std::min(free, limit - std::min(limit, used));
  return free / static_cast<std::size_t>(world.local_size());
}

HostRanks::HostRanks(multinode::World& world, int local, const Usage& usage, const char* backend)
    : Ranks(world, local), offset_(usage.offset) {
  const auto refuse = [&](bool given, const char* option, const char* reason) {
    if (given) throw multinode::UsageError(std::string(option) + ": " + reason + " (--backend " + backend + ")");
  };
  refuse(usage.aggregate > 1, "-m", "only NCCL joins several operations in a group");
  refuse(usage.parallel_init, "-p", "there are no GPUs to initialise in parallel");
  refuse(usage.default_stream, "-y", "there are no streams without a GPU");
  refuse(usage.graph_launches > 0, "-G", "there are no CUDA graphs without a GPU");
  refuse(usage.host_time, "-C", "without a GPU the host's time is always shown");
  refuse(usage.register_buffers > 0, "-R", "only NCCL registers buffers");
  refuse(usage.memory_report, "-M", "it reports GPU memory");
}

void HostRanks::allocate(std::size_t in_bytes, std::size_t both_bytes) {
  const std::size_t widest = 8;  // bytes of an element
  for (int local = 0; local < this->local(); ++local) {
    auto& pair = buffers_.emplace_back();
    for (const auto& [buffer, bytes] : {std::pair(Buffer::in, in_bytes), std::pair(Buffer::both, both_bytes)}) {
      const std::size_t all = bytes + offset_ * widest;
      pair[static_cast<std::size_t>(buffer)] =
          Memory(static_cast<std::byte*>(::operator new[](std::max<std::size_t>(all, 1), page)));
      // Write every page: reading one that was never written costs nothing and would distort the result.
      std::fill_n(pair[static_cast<std::size_t>(buffer)].get(), all, std::byte{1});
    }
  }
}

std::unique_ptr<Ranks> make_ranks(multinode::World& world, multinode::Backend backend, const Usage& usage) {
  using multinode::Backend;
  if (backend == Backend::automatic) {
    [[maybe_unused]] const int each = usage.threads * usage.ranks_per_thread;
    backend = Backend::gloo;
#ifdef MULTINODE_HAVE_MPI
    if (each == 1 && (world.launch().under_mpi || world.size() == 1)) backend = Backend::mpi;
#endif
#ifdef MULTINODE_HAVE_NCCL
    if (multinode::own_gpus(world, each)) backend = Backend::nccl;
#endif
  }
  switch (backend) {
#ifdef MULTINODE_HAVE_MPI
    case Backend::mpi:
      return make_mpi_ranks(world, usage);
#endif
#ifdef MULTINODE_HAVE_GLOO
    case Backend::gloo:
      return make_gloo_ranks(world, usage);
#endif
#ifdef MULTINODE_HAVE_NCCL
    case Backend::nccl:
      return make_nccl_ranks(world, usage);
#endif
    default:
      throw multinode::UsageError("--backend " + std::string(multinode::name_of(backend)) +
                                  " is not in this build: install it (bash ci/setup) and build again");
  }
}

}  // namespace perf
