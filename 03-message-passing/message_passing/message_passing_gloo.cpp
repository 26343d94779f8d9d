// message_passing_gloo: rank 0 sends a message to every other rank over Gloo: TCP between CPUs, no MPI.
// Exit status: 0 every element right, 1 wrong or timed out, 2 bad command line or environment.
#include "exchange.hpp"

#include <multinode/communicator/gloo_store.hpp>

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <vector>

constexpr std::uint64_t slot = 3;  // Gloo's word for a tag

int run(multinode::World& world, const ExchangeOptions& options) {
  require_exchange(world, options, "gloo");

  // Every rank connects to every other rank. They exchange their addresses through the store.
  gloo::transport::tcp::attr address(multinode::gloo_address(world).c_str());
  multinode::GlooStore store(world.store(), world.timeout());
  auto context = std::make_shared<gloo::rendezvous::Context>(world.rank(), world.size());
  {
    const auto inside = world.watchdog().enter("connectFullMesh");
    context->setTimeout(world.timeout() +
                        std::chrono::seconds(15));  // later than the watchdog, which can name the late rank
    auto device = gloo::transport::tcp::CreateDevice(address);
    context->connectFullMesh(store, device);
  }

  std::vector<std::int32_t> block(options.count);
  auto buffer = context->createUnboundBuffer(block.data(), block.size() * sizeof block[0]);
  const auto send = [&](int peer) {
    const auto inside = world.watchdog().enter("send", peer);
    buffer->send(peer, slot);
    buffer->waitSend();
  };
  const auto receive = [&] {
    const auto inside = world.watchdog().enter("recv", 0);
    buffer->recv(0, slot);
    buffer->waitRecv();
  };
  return exchange(world, options, block, send, receive);
}

int main(int argc, char** argv) {
  ExchangeOptions options;
  return multinode::run(options.program("message_passing_gloo"), argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
