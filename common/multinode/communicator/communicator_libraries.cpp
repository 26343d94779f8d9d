// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/communicator/libraries.hpp>
#include <multinode/world/libraries.hpp>

#ifdef MULTINODE_HAVE_MPI
#include <multinode/communicator/mpi.hpp>
#endif
#ifdef MULTINODE_HAVE_GLOO
#include <gloo/config.h>
#endif

namespace multinode {

namespace {

[[maybe_unused]] std::string dotted(int version, int major_unit, int minor_unit) {
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / minor_unit) +
         (minor_unit > 1 && major_unit / minor_unit == 100 ? "." + std::to_string(version % minor_unit) : "");
}

class CommunicatorLibraries : public Libraries {
 public:
  std::vector<std::pair<std::string, std::string>> versions() const override {
    std::vector<std::pair<std::string, std::string>> list;
#ifdef MULTINODE_HAVE_MPI
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(library, &length);
    const std::string_view text(library, static_cast<std::size_t>(length));
    list.emplace_back("MPI", text.substr(0, text.find_first_of(",\n")));
#endif
#ifdef MULTINODE_HAVE_GLOO
    list.emplace_back("Gloo", dotted(GLOO_VERSION, 10000, 100));
#endif
#ifdef MULTINODE_HAVE_NCCL
    int nccl = 0;
    if (ncclGetVersion(&nccl) == ncclSuccess) list.emplace_back("NCCL", dotted(nccl, 10000, 100));
#endif
#ifdef MULTINODE_HAVE_CUDA
    int runtime = 0;
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) list.emplace_back("CUDA", dotted(runtime, 1000, 10));
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess)
      list.emplace_back("CUDA driver", driver ? dotted(driver, 1000, 10) : "none");
#endif
    return list;
  }

  const char* emulated_gpus() const noexcept override { return multinode::emulated_gpus(); }

#ifdef MULTINODE_HAVE_MPI
  bool has_mpi() const noexcept override { return true; }
  std::string broadcast_over_mpi(const Launch& launch, const std::string& text) const override {
    start_mpi();
    require_ranks_of_mpi(launch);
    char buffer[1024] = {};
    text.copy(buffer, sizeof buffer - 1);
    check(MPI_Bcast(buffer, sizeof buffer, MPI_CHAR, 0, MPI_COMM_WORLD));
    return buffer;
  }
  bool must_finalize_mpi() const noexcept override { return multinode::must_finalize_mpi(); }
  void finalize_mpi() const noexcept override { multinode::finalize_mpi(); }
  void abort_mpi(int status) const noexcept override {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, status);
  }
#endif
};

}  // namespace

bool register_communicator_libraries() noexcept {
  static const CommunicatorLibraries these;
  return register_libraries(these);
}

}  // namespace multinode
