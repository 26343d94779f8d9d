// exchange.hpp: what message_passing_mpi, _gloo and _nccl share: their options, what is sent, and how it is checked.
#pragma once

#include <multinode/program.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

struct ExchangeOptions {
  std::size_t count = 1000;  // elements of a message
  int rounds = 1;
  int mute = -1;     // a rank that does not take part
  int corrupt = -1;  // a rank that damages an element of what it received
  multinode::CommonOptions common;

  multinode::Program program(const char* name);
};

// The element that rank 0 sends to `peer` at `index` in `round`: a message that is another rank's, from another round,
// or shifted, differs.
std::int32_t element(int peer, int round, std::size_t index);
void fill(std::span<std::int32_t> block, int peer, int round);

// Number of elements of `block` that are not what rank 0 sent to `rank`. Says the first on stderr.
std::size_t count_wrong(std::span<const std::int32_t> block, int rank, int round);

// One rank is too few, another library's name after --backend is refused, --mute and --corrupt name a receiver:
// throws UsageError. Called by every rank first; rank 0 begins the file of --json.
void require_exchange(const multinode::World& world, const ExchangeOptions& options, std::string_view backend);

// Every rank calls it with its own number of wrong elements: the exit status, the same on all; rank 0 says the verdict.
int verdict(multinode::World& world, const ExchangeOptions& options, std::size_t wrong);

// Stays away from the exchange until the others' watchdogs end it.
[[noreturn]] void stay_mute();
