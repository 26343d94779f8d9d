// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/mpi.hpp>
#include <multinode/world/world.hpp>

namespace multinode {

namespace {

// Finalizes MPI when the process exits, if the program has not.
struct Library {
  bool initialized_here = false;
  bool must_finalize() const {
    int finalized = 0;
    MPI_Finalized(&finalized);
    return initialized_here && !finalized;
  }
  void finalize() const {
    if (must_finalize()) MPI_Finalize();
  }
  ~Library() { finalize(); }
};

Library& library() {
  static Library one;
  return one;
}

}  // namespace

void start_mpi() {
  int initialized = 0, provided = 0;
  check(MPI_Initialized(&initialized));
  if (!initialized) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
    library().initialized_here = true;
  }
  check(MPI_Query_thread(&provided));
  if (provided < MPI_THREAD_SERIALIZED)
    throw std::runtime_error(
        "MPI was initialized for one thread: replace MPI_Init(&argc, &argv) by "
        "MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided)");
}

void require_ranks_of_mpi(const Launch& launch) {
  int size = 0, rank = 0, length = 0;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size));
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  if (size == launch.world_size.value && rank == launch.rank.value) return;
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Get_library_version(library, &length);
  finalize_mpi();  // no other rank waits in this one's MPI
  throw UsageError("the launcher says rank " + std::to_string(launch.rank.value) + " of " +
                   std::to_string(launch.world_size.value) + " (" + launch.world_size.variable + "), MPI says " +
                   std::to_string(rank) + " of " + std::to_string(size) + ": this program was built with " +
                   std::string(library).substr(0, std::string_view(library).find(',')) +
                   "; start it with that library's own mpirun, or srun --mpi=pmix");
}

bool must_finalize_mpi() noexcept { return library().must_finalize(); }
void finalize_mpi() noexcept { library().finalize(); }

MpiComm::MpiComm(const World& world) {
  const Launch& launch = world.launch();
  if (world.size() > 1 && !launch.under_mpi)
    throw UsageError("--backend mpi: " + launch.launcher +
                     " is not an MPI launcher: start with mpirun or srun --mpi=pmix, or use --backend gloo");
  start_mpi();
  require_ranks_of_mpi(launch);
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
}

MpiComm::~MpiComm() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);  // collective
}

}  // namespace multinode
