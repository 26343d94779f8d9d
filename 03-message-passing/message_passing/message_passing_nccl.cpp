// message_passing_nccl: rank 0 sends a message from its GPU's memory to every other rank's GPU with ncclSend.
// Exit status: 0 every element right, 1 wrong or timed out, 2 bad command line or environment, 77 no GPU.
#include "exchange.hpp"

#include <multinode/device.hpp>

#include <iostream>
#include <vector>

using multinode::check;

// Destroys the communicator at the end. If the watchdog ends the process, it aborts the communicator first.
class NcclCommunicator {
 public:
  NcclCommunicator(multinode::World& world) {
    ncclUniqueId id{};  // rank 0 makes it; the other ranks read it from the store
    if (world.rank() == 0) {
      check(ncclGetUniqueId(&id));
      world.store().set("nccl id", {id.internal, sizeof id.internal});
    } else {
      world.store().get("nccl id", world.timeout()).copy(id.internal, sizeof id.internal);
    }
    const auto inside = world.watchdog().enter("ncclCommInitRank");
    check(ncclCommInitRank(&communicator_, world.size(), id, world.rank()));
    world.watchdog().set_abort([communicator = communicator_] { ncclCommAbort(communicator); });
  }
  ~NcclCommunicator() { ncclCommDestroy(communicator_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ncclComm_t get() const { return communicator_; }

 private:
  ncclComm_t communicator_{};
};

int run(multinode::World& world, const ExchangeOptions& options) {
  require_exchange(world, options, "nccl");
  const int rank = world.rank(), size = world.size();
  const int devices = multinode::device_count();
  if (devices == 0) throw multinode::HardwareAbsent("no GPU here: NCCL needs one (message_passing_gloo does not)");
  check(cudaSetDevice(world.local_rank() % devices));

  const NcclCommunicator communicator(world);
  if (rank == options.mute) stay_mute();

  std::vector<std::int32_t> block(options.count);
  multinode::DeviceBuffer<std::int32_t> buffer(options.count);
  const multinode::Stream stream;
  std::size_t wrong = 0;
  for (int round = 1; round <= options.rounds; ++round) {
    if (rank == 0) {
      if (options.rounds > 1) std::cout << "round " << round << " of " << options.rounds << std::endl;
      for (int peer = 1; peer < size; ++peer) {
        fill(block, peer, round);
        buffer.copy_from(block, stream.get());
        const auto inside = world.watchdog().enter("ncclSend", peer);
        check(ncclSend(buffer.data(), buffer.size(), ncclInt32, peer, communicator.get(), stream.get()));
        stream.synchronize();  // ncclSend only queues the message: it has been sent when the stream is done
        if (round == 1) std::cout << "Rank 0 sent data to Rank " << peer << std::endl;
      }
    } else {
      {
        const auto inside = world.watchdog().enter("ncclRecv", 0);
        check(ncclRecv(buffer.data(), buffer.size(), ncclInt32, 0, communicator.get(), stream.get()));
        stream.synchronize();
      }
      buffer.copy_to(block, stream.get());
      stream.synchronize();
      if (rank == options.corrupt) block[block.size() / 2] ^= 1;
      wrong += count_wrong(block, rank, round);
      if (round == 1) std::cout << "Rank " << rank << " has received data from rank 0" << std::endl;
    }
  }
  return verdict(world, options, wrong);
}

int main(int argc, char** argv) {
  ExchangeOptions options;
  return multinode::run(options.program("message_passing_nccl"), argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
