#include "ranks.hpp"

#include <multinode/base/text.hpp>
#include <multinode/communicator.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <thread>

namespace perf {

Ranks::Ranks(multinode::World& world, const Usage& usage)
    : world_(world), local_(usage.threads * usage.ranks_per_thread) {
  const auto joined = [](const std::vector<std::string>& colors) { return multinode::join(colors, " "); };
  std::istringstream colors(
      world.combine_on_rank_0("NCCL_TESTS_SPLIT", std::to_string(usage.color(world.rank())), joined));
  colors_.assign(std::istream_iterator<int>(colors), {});
  for (int process = 0; process < world.size(); ++process)
    if (color_of(process) == color_of(world.rank())) group_.push_back(process);
  for (const int color : colors_)
    if (const auto size = std::ranges::count(colors_, color); size != std::ranges::count(colors_, colors_[0]))
      throw multinode::UsageError(
          fmt::format("NCCL_TESTS_SPLIT: the groups must have the same size, but of {} processes group {} has {} and "
                      "group {} has {}: start more or fewer",
                      world.size(), colors_[0], std::ranges::count(colors_, colors_[0]), color, size));
}

int Ranks::rank_of(int number) const {
  const auto process = colors_.begin() + number / local_;
  return static_cast<int>(std::count(colors_.begin(), process, *process)) * local_ + number % local_;
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
