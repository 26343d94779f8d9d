#include "ranks_host.hpp"

#include <multinode/communicator/gloo_store.hpp>

#include <gloo/barrier.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

namespace perf {

namespace {

// The connections of one rank. Gloo's own rendezvous would open one connection to the store per rank of a process.
class GlooRank : public gloo::Context {
 public:
  GlooRank(int rank, int size, const std::shared_ptr<gloo::transport::Device>& device,
           std::chrono::milliseconds timeout)
      : gloo::Context(rank, size) {
    device_ = device;
    setTimeout(timeout);
    transportContext_ = device->createContext(rank, size);
    transportContext_->setTimeout(timeout);
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) transportContext_->createPair(peer);
  }
  // The address at which each peer finds this rank, all of the same length, one after the other.
  std::string addresses() {
    std::string all;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::vector<char> address = getPair(peer)->address().bytes();
      all.append(address.begin(), address.end());
    }
    return all;
  }
  // Returns when all are connected. `addresses`: of every rank.
  void connect(const std::vector<std::string>& addresses) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::string& all = addresses[static_cast<std::size_t>(peer)];
      const auto length = static_cast<std::ptrdiff_t>(all.size()) / (size - 1);
      const auto address = all.begin() + (rank < peer ? rank : rank - 1) * length;
      getPair(peer)->connect({address, address + length});
    }
  }
};

class GlooRanks : public HostRanks {
 public:
  GlooRanks(multinode::World& world, int of_process) : HostRanks(world, of_process) {
    // Longer than the watchdog's deadline, because the watchdog can name the late rank.
    const std::chrono::milliseconds timeout = world.timeout() + std::chrono::seconds(15);
    require_descriptors();
    const gloo::transport::tcp::attr attributes(multinode::gloo_address(world).c_str());
    const std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    std::string addresses_here;
    for (int local = 0; local < this->local(); ++local) {
      ranks_.push_back(std::make_shared<GlooRank>(first() + local, size(), device, timeout));
      addresses_here += ranks_.back()->addresses();
    }
    std::vector<std::string> addresses;
    for (const std::string& process : world.gather("addresses of gloo's ranks", addresses_here))
      for (std::size_t local = 0, each = process.size() / ranks_.size(); local < ranks_.size(); ++local)
        addresses.push_back(process.substr(local * each, each));
    each_rank([&](int local) {
      const auto inside = announce(local, "connecting over gloo");
      ranks_[static_cast<std::size_t>(local)]->connect(addresses);
    });
  }

  multinode::Backend backend() const override { return multinode::Backend::gloo; }
  bool has_in_place(const Collective& collective) const override { return collective.gloo_in_place; }

  Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) override {
    Samples seconds(ranks_.size(), std::vector<double>(static_cast<std::size_t>(samples)));
    each_rank([&](int local) {
      auto call = call_of<GlooCall>(collective, operation, local, begin(local, Buffer::in), begin(local, Buffer::both));
      call.type = operation.type;
      call.add = [type = operation.type](void* out, const void* x, const void* y, std::size_t count) {
        multinode::combine(type, multinode::Reduction::sum, out, x, y, count);
      };
      call.context = ranks_[static_cast<std::size_t>(local)];
      {
        const auto inside = announce(local, "gloo::barrier");
        gloo::BarrierOptions options(call.context);
        gloo::barrier(options);
      }
      time(collective, seconds[static_cast<std::size_t>(local)], calls, local, [&] { collective.gloo(call); });
    });
    return seconds;
  }

 private:
  // Gloo has a descriptor for each peer of a rank.
  void require_descriptors() const {
    const rlim_t needed = static_cast<rlim_t>(local()) * static_cast<rlim_t>(size() - 1) + 100;
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::max(limit.rlim_cur, std::min(needed, limit.rlim_max));
    ::setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < needed)
      throw multinode::UsageError(fmt::format(
          "-g {}: over Gloo such a process needs {} open files, and may have {}: raise the limit (ulimit -n), or start "
          "more processes with fewer ranks each",
          local(), needed, limit.rlim_cur));
  }

  // Calls function(0), function(1) ... at the same time, each on its own thread, because the ranks wait for each other;
  // function(0) runs on this thread. Ends the process if one of several throws, because the others wait for it.
  void each_rank(const std::function<void(int)>& function) const {
    if (local() == 1) return function(0);
    const auto guarded = [&](int local) {
      try {
        function(local);
      } catch (const std::exception& e) {
        world().watchdog().fail(e.what(), multinode::exit_wrong);
      }
    };
    std::vector<std::jthread> others;
    for (int other = 1; other < local(); ++other) others.emplace_back(guarded, other);
    guarded(0);
    const auto inside = world().watchdog().enter("waiting for this process's other threads");
    others.clear();
  }

  std::vector<std::shared_ptr<GlooRank>> ranks_;
};

}  // namespace

std::unique_ptr<Ranks> make_gloo_ranks(multinode::World& world, int local) {
  return std::make_unique<GlooRanks>(world, local);
}

}  // namespace perf
