// exchange.hpp: options, message content and its check, shared by message_passing_mpi, _gloo and _nccl.
#pragma once

#include <multinode/program.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

struct ExchangeOptions {
  std::size_t count = 1000;  // elements of a message
  int rounds = 1;
  int mute = -1;     // rank that does not take part; -1: none
  int corrupt = -1;  // rank that corrupts one received element; -1: none
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

// Every rank passes its own number of wrong elements and gets the exit status, which is the same on all ranks. Rank 0
// prints the verdict.
int verdict(multinode::World& world, const ExchangeOptions& options, std::size_t wrong);

// Sleeps until the watchdog of another rank ends this process.
[[noreturn]] void stay_mute();
