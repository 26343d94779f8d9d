// ranks_host.hpp: ranks with buffers in host memory: the common part of MPI's and Gloo's.
#pragma once

#include "ranks.hpp"

#include <chrono>
#include <new>
#include <optional>

namespace perf {

// Host memory that this process may still allocate: what the kernel and the control group have left, divided by the
// number of processes on this node.
std::size_t available_host_memory(const multinode::World& world);

class HostRanks : public Ranks {
 public:
  std::string device(int) const override { return "cpu"; }
  std::size_t available_memory() const override { return available_host_memory(world()); }
  void allocate(std::size_t in_bytes, std::size_t both_bytes) override;
  void write(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& fill) override {
    fill({begin(local, buffer) + offset, bytes});
  }
  void read(int local, Buffer buffer, std::size_t offset, std::size_t bytes, const Host& look) override {
    look({begin(local, buffer) + offset, bytes});
  }

 protected:
  using Ranks::Ranks;

  std::byte* begin(int local, Buffer buffer) const {
    return buffers_[static_cast<std::size_t>(local)][static_cast<std::size_t>(buffer)].get();
  }

  // Announces `name` to the watchdog while the result lives. Only the first local rank does so, for the whole process.
  std::optional<multinode::Watchdog::Operation> announce(int local, const char* name) const {
    if (local != 0) return std::nullopt;
    return std::optional<multinode::Watchdog::Operation>(std::in_place, world().watchdog(), name, multinode::everyone);
  }

  // Each sample is `calls` calls of function() by one local rank: it reads the clock once per sample, and announces the
  // collective once per sample.
  template <class Function>
  void time(const Collective& collective, std::span<double> seconds, int calls, int local, Function&& function) {
    using Clock = std::chrono::steady_clock;
    auto before = Clock::now();
    for (double& sample : seconds) {
      const auto inside = announce(local, collective.name);
      for (int call = 0; call < calls; ++call) function();
      const auto now = Clock::now();
      sample = std::chrono::duration<double>(now - before).count() / calls;
      before = now;
    }
  }

 private:
  static constexpr std::align_val_t page{4096};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, page); }
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  std::vector<std::array<Memory, 2>> buffers_;
};

}  // namespace perf
