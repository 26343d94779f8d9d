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

HostRanks::HostRanks(multinode::World& world, const Usage& usage, const char* backend)
    : Ranks(world, usage), offset_(usage.offset) {
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

}  // namespace perf
