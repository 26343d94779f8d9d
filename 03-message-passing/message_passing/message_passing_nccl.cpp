// message_passing_nccl: rank 0 sends a message from its GPU's memory to every other rank's GPU with ncclSend.
// Exit status: 0 every element right, 1 wrong or timed out, 2 bad command line or environment, 77 no GPU.
#include "exchange.hpp"

#include <multinode/communicator.hpp>
#include <multinode/communicator/nccl_handle.hpp>
#include <multinode/store/tcp_store.hpp>

#include <vector>

using multinode::check;

ncclComm_t connect(multinode::World& world) {
  ncclUniqueId id{};  // rank 0 makes it; the other ranks read it from the store
  if (world.rank() == 0) {
    check(ncclGetUniqueId(&id));
    world.store().set("nccl id", {id.internal, sizeof id.internal});
  } else {
    world.store().get("nccl id", world.timeout()).copy(id.internal, sizeof id.internal);
  }
  const auto inside = world.watchdog().enter("ncclCommInitRank");
  ncclComm_t communicator{};
  check(ncclCommInitRank(&communicator, world.size(), id, world.rank()));
  return communicator;
}

int run(multinode::World& world, const ExchangeOptions& options) {
  require_exchange(world, options, "nccl");
  check(cudaSetDevice(multinode::require_own_gpus(world)));

  const multinode::NcclHandle communicator(world.watchdog(), connect(world));

  std::vector<std::int32_t> block(options.count);
  multinode::DeviceBuffer<std::int32_t> buffer(options.count);
  const multinode::Stream stream;
  const auto send = [&](int peer) {
    buffer.copy_from(block, stream.get());
    const auto inside = world.watchdog().enter("ncclSend", peer);
    communicator.use(
        [&](ncclComm_t comm) { return ncclSend(buffer.data(), buffer.size(), ncclInt32, peer, comm, stream.get()); });
    stream.synchronize();  // ncclSend only queues the message: it has been sent when the stream is done
  };
  const auto receive = [&] {
    const auto inside = world.watchdog().enter("ncclRecv", 0);
    communicator.use(
        [&](ncclComm_t comm) { return ncclRecv(buffer.data(), buffer.size(), ncclInt32, 0, comm, stream.get()); });
    buffer.copy_to(block, stream.get());
    stream.synchronize();
  };
  return exchange(world, options, block, send, receive);
}

int main(int argc, char** argv) {
  ExchangeOptions options;
  return multinode::run(options.program("message_passing_nccl"), argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
