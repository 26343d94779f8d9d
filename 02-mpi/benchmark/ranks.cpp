#include "ranks_host.hpp"

#include <algorithm>
#include <fstream>

namespace perf {

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

void HostRanks::allocate(std::size_t in_bytes, std::size_t both_bytes) {
  for (int local = 0; local < this->local(); ++local) {
    auto& pair = buffers_.emplace_back();
    for (const auto& [buffer, bytes] : {std::pair(Buffer::in, in_bytes), std::pair(Buffer::both, both_bytes)}) {
      Memory& memory = pair[static_cast<std::size_t>(buffer)];
      memory.reset(static_cast<std::byte*>(::operator new[](std::max<std::size_t>(bytes, 1), page)));
      // Write every page: reading one that was never written costs nothing and would distort the result.
      std::fill_n(memory.get(), bytes, std::byte{1});
    }
  }
}

std::unique_ptr<Ranks> make_ranks(multinode::World& world, multinode::Backend backend, int local) {
  using multinode::Backend;
  if (backend == Backend::automatic) {
    backend = Backend::gloo;
#ifdef MULTINODE_HAVE_MPI
    if (local == 1 && (world.launch().under_mpi || world.size() == 1)) backend = Backend::mpi;
#endif
#ifdef MULTINODE_HAVE_NCCL
    if (multinode::own_gpus(world, local)) backend = Backend::nccl;
#endif
  }
  switch (backend) {
#ifdef MULTINODE_HAVE_MPI
    case Backend::mpi:
      return make_mpi_ranks(world, local);
#endif
#ifdef MULTINODE_HAVE_GLOO
    case Backend::gloo:
      return make_gloo_ranks(world, local);
#endif
#ifdef MULTINODE_HAVE_NCCL
    case Backend::nccl:
      return make_nccl_ranks(world, local);
#endif
    default:
      throw multinode::UsageError("--backend " + std::string(multinode::name_of(backend)) +
                                  " is not in this build: install it (bash ci/setup) and build again");
  }
}

}  // namespace perf
