// exchange.hpp: what message_passing_mpi, _gloo and _nccl share: all but the calls of their libraries.
#pragma once

#include <multinode/communicator/libraries.hpp>
#include <multinode/world/program.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

struct ExchangeOptions {
  std::size_t count = 1000;  // elements of a message
  int rounds = 1;
  std::optional<int> mute;     // rank that does not take part
  std::optional<int> corrupt;  // rank that corrupts one received element
  multinode::CommonOptions common;

  multinode::Program program(const char* name);
};

// The element that rank 0 sends to `peer` at `index` in `round`. A message for another rank, from another round, or
// shifted has other elements.
std::int32_t element(int peer, int round, std::size_t index);
void fill(std::span<std::int32_t> block, int peer, int round);

// Number of elements in `block` that differ from what rank 0 sends to `rank`. Prints the first one to stderr.
std::size_t count_wrong(std::span<const std::int32_t> block, int rank, int round);

// Throws UsageError if there is only one rank, if --backend names another library, or if --mute or --corrupt is not a
// receiver. Every rank calls it first. Rank 0 writes the first line of --json.
void require_exchange(const multinode::World& world, const ExchangeOptions& options, std::string_view backend);

// In each round rank 0 fills `block` and calls `send` for every other rank. The others call `receive`, which fills
// their `block`, and check it. Returns the exit status, which is the same on all ranks, after rank 0 has printed the
// verdict.
int exchange(multinode::World& world, const ExchangeOptions& options, std::span<std::int32_t> block,
             const std::function<void(int peer)>& send, const std::function<void()>& receive);
