// message_passing_mpi: rank 0 sends a message to every other rank with MPI_Send, which receives it with MPI_Recv.
// Exit status: 0 every element right, 1 wrong or timed out, 2 bad command line or environment.
#include "exchange.hpp"

#include <multinode/communicator/mpi.hpp>

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

  std::vector<std::int32_t> block(options.count);
  const int count = static_cast<int>(block.size());
  const auto send = [&](int peer) {
    const auto inside = world.watchdog().enter("MPI_Send", peer);
    check(MPI_Send(block.data(), count, MPI_INT32_T, peer, tag, MPI_COMM_WORLD));
  };
  const auto receive = [&] {
    const auto inside = world.watchdog().enter("MPI_Recv", 0);
    check(MPI_Recv(block.data(), count, MPI_INT32_T, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  };
  return exchange(world, options, block, send, receive);
}

int main(int argc, char** argv) {
  ExchangeOptions options;
  return multinode::run(options.program("message_passing_mpi"), argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
