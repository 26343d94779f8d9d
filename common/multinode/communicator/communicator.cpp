// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/device.hpp>

#include <stdexcept>

namespace multinode {

std::string_view name_of(Backend backend) {
  static constexpr const char* names[] = {"auto", "mpi", "nccl", "gloo"};
  return names[static_cast<std::size_t>(backend)];
}

Backend parse_backend(std::string_view name) {
  for (const Backend backend : {Backend::automatic, Backend::mpi, Backend::nccl, Backend::gloo})
    if (name == name_of(backend)) return backend;
  throw UsageError("--backend must be auto, mpi, nccl or gloo, not '" + std::string(name) + "'");
}

Communicator::Communicator(World& world)
    : world_(world), watchdog_(world.watchdog()), rank_(world.rank()), size_(world.size()) {}

void Communicator::require_root(int root) const {
  if (root < 0 || root >= size_)
    throw std::invalid_argument("broadcast: root " + std::to_string(root) + " is not a rank: there are " +
                                std::to_string(size_));
}

void Communicator::require_waits() const {
  if (const char* name = std::exchange(*lost_, nullptr))
    throw std::logic_error(std::string("Communicator::start_all_reduce(), '") + name +
                           "': its Work was destroyed before wait()");
}

Backend choose_cpu_backend([[maybe_unused]] const World& world) {
#if defined(MULTINODE_HAVE_MPI) && defined(MULTINODE_HAVE_GLOO)
  return world.launch().under_mpi ? Backend::mpi : Backend::gloo;
#elif defined(MULTINODE_HAVE_MPI)
  return Backend::mpi;
#else
  return Backend::gloo;
#endif
}

std::unique_ptr<Communicator> make_communicator(World& world, Backend backend) {
#ifdef MULTINODE_HAVE_NCCL
  const std::optional<int> device = backend == Backend::nccl        ? require_own_gpus(world)
                                    : backend == Backend::automatic ? own_gpus(world)
                                                                    : std::nullopt;
  if (device) backend = Backend::nccl;
#endif
  if (backend == Backend::automatic) backend = choose_cpu_backend(world);
  switch (backend) {
    case Backend::mpi:
#ifdef MULTINODE_HAVE_MPI
      return make_mpi(world);
#else
      throw UsageError(
          "--backend mpi: this build has no MPI: apt install libopenmpi-dev openmpi-bin, and build again; or use "
          "--backend gloo");
#endif
    case Backend::gloo:
#ifdef MULTINODE_HAVE_GLOO
      return make_gloo(world);
#else
      throw UsageError(
          "--backend gloo: this build has no Gloo: apt install libgloo-dev, and build again; or use --backend mpi");
#endif
    case Backend::nccl:
#ifdef MULTINODE_HAVE_NCCL
      return make_nccl(world, *device);
#else
      throw UsageError(
          "--backend nccl: this build has no NCCL: install the CUDA Toolkit and libnccl-dev, and build again; or use "
          "--backend mpi or gloo");
#endif
    case Backend::automatic:
      break;
  }
  throw std::invalid_argument("no such backend");
}

std::unique_ptr<Communicator> make_cpu_communicator(World& world, Backend backend) {
  if (backend == Backend::nccl)
    throw UsageError("--backend nccl: this program trains on the CPU; use --backend mpi or gloo");
  return make_communicator(world, backend == Backend::automatic ? choose_cpu_backend(world) : backend);
}

}  // namespace multinode
