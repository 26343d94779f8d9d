// message_passing_mpi: rank 0 sends a message to every other rank with MPI_Send, which receives it with MPI_Recv.
// Exit status: 0 every element right, 1 wrong or timed out, 2 bad command line or environment.
#include "exchange.hpp"

#include <multinode/mpi.hpp>

#include <iostream>
#include <vector>

using multinode::check;

constexpr int tag = 3;

int run(multinode::World& world, const ExchangeOptions& options) {
  require_exchange(world, options, "mpi");
  if (!world.launch().under_mpi)
    throw multinode::UsageError("MPI finds its ranks through its own launcher, not through " + world.launch().launcher +
                                ": start it with mpirun, or srun --mpi=pmix");
  const multinode::MpiComm started(world);  // calls MPI_Init, unless the World has, which met through MPI
  // Without this, MPI itself ends the program when a call fails, and check() never sees the error.
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  int rank = 0, size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  check(MPI_Comm_size(MPI_COMM_WORLD, &size));
  if (rank == options.mute) stay_mute();

  std::vector<std::int32_t> block(options.count);
  const int count = static_cast<int>(block.size());
  std::size_t wrong = 0;
  for (int round = 1; round <= options.rounds; ++round) {
    if (rank == 0) {
      if (options.rounds > 1) std::cout << "round " << round << " of " << options.rounds << std::endl;
      for (int peer = 1; peer < size; ++peer) {
        fill(block, peer, round);
        const auto inside = world.watchdog().enter("MPI_Send", peer);
        check(MPI_Send(block.data(), count, MPI_INT32_T, peer, tag, MPI_COMM_WORLD));
        if (round == 1) std::cout << "Rank 0 sent data to Rank " << peer << std::endl;
      }
    } else {
      {
        const auto inside = world.watchdog().enter("MPI_Recv", 0);
        check(MPI_Recv(block.data(), count, MPI_INT32_T, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
      }
      if (rank == options.corrupt) block[block.size() / 2] ^= 1;
      wrong += count_wrong(block, rank, round);
      if (round == 1) std::cout << "Rank " << rank << " has received data from rank 0" << std::endl;
    }
  }
  return verdict(world, options, wrong);
}

int main(int argc, char** argv) {
  ExchangeOptions options;
  return multinode::run(options.program("message_passing_mpi"), argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
