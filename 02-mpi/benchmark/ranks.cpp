#include "ranks.hpp"

#include <multinode/communicator.hpp>

#include <thread>

namespace perf {

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
