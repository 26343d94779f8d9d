// limits.hpp: what bounds memory and messages, on both sides.
#pragma once

#include <cstddef>

namespace tasks {

constexpr std::size_t most_bytes = 4'000'000;   // of a task's arguments, and of its result, as CBOR
constexpr std::size_t message_bytes = 4 << 20;  // of a message: larger ones are refused by the receiver
constexpr std::size_t batch_bytes = 256 << 10;  // after which the next task waits for the next message
// Tasks that a runner has got and not answered: 20 ms of work, so that no long task keeps many others waiting.
constexpr std::size_t least_window = 2, most_window = 256;
constexpr double window_seconds = 0.02;
constexpr std::size_t most_name = 256;    // characters of a function's name
constexpr std::size_t most_error = 4096;  // characters of what a function threw: the rest is cut

}  // namespace tasks
