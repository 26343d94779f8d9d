// Rank 0 sends a block of integers to every other rank over Gloo: TCP, no MPI, any launcher or none.
//
//   g++ -std=c++20 -O2 send_gloo.cpp -o send_gloo -lgloo
//   mkdir meeting; for r in 0 1 2 3; do RANK=$r WORLD_SIZE=4 ./send_gloo meeting & done; wait
//
// The ranks meet in an empty folder that all nodes see. On several nodes: ./send_gloo FOLDER ADDRESS, with an address
// of this node that the others can reach (hostname -I lists its addresses; the name itself often stands for 127.0.1.1).
// Exit status: 0 if every element is right, 1 if not, or if a rank is missing.
// After: send_mpi.cpp. New: a meeting place, RANK and WORLD_SIZE.
// SPDX-License-Identifier: Apache-2.0
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

int main(int argc, char** argv) {
  const char *rank_text = std::getenv("RANK"), *size_text = std::getenv("WORLD_SIZE");
  if (argc < 2 || !rank_text || !size_text || std::atoi(size_text) < 2) {
    std::fprintf(stderr, "usage: RANK=r WORLD_SIZE=n ./send_gloo FOLDER [ADDRESS], with at least 2 ranks\n");
    return 1;
  }
  const int rank = std::atoi(rank_text), size = std::atoi(size_text);
  try {
    // Every rank listens at an address, writes it into the folder, and reads those of the others.
    gloo::rendezvous::FileStore store(argv[1]);
    auto device = gloo::transport::tcp::CreateDevice(argc > 2 ? argv[2] : "127.0.0.1");
    auto world = std::make_shared<gloo::rendezvous::Context>(rank, size);
    world->setTimeout(std::chrono::seconds(20));  // for connecting, and for every send and receive
    world->connectFullMesh(store, device);

    constexpr int count = 1000, tag = 3;
    int block[count] = {};
    long wrong = 0;
    auto data = world->createUnboundBuffer(block, sizeof block);
    auto verdict = world->createUnboundBuffer(&wrong, sizeof wrong);
    if (rank == 0) {
      long sum = 0;
      for (int peer = 1; peer < size; ++peer) {
        for (int i = 0; i < count; ++i) block[i] = 10000 * peer + i;
        data->send(peer, tag);
        data->waitSend();  // send has only queued the message
        std::printf("Rank 0 sent data to Rank %d\n", peer);
        verdict->recv(peer, tag);
        verdict->waitRecv();
        sum += wrong;
      }
      wrong = sum;
      std::printf("%s: %ld of %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, (size - 1) * count);
    } else {
      data->recv(0, tag);
      data->waitRecv();
      for (int i = 0; i < count; ++i) wrong += block[i] != 10000 * rank + i;
      std::printf("Rank %d has received data from rank 0\n", rank);
      verdict->send(0, tag);
      verdict->waitSend();
    }
    // A rank that leaves closes its connections, and a rank that is still connecting to it fails: leave together.
    gloo::BarrierOptions all(world);
    gloo::barrier(all);
    if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("send_gloo: standard output"), 1;
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}
