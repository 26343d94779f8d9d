// lease.hpp: how long the head and a node believe in each other.
#pragma once

#include <chrono>

namespace cluster {

// A node's processes may run until `lease` after the node SENT the last message that the head's store acknowledged. The
// head gives a node up `silence` after it RECEIVED the node's last message. A message is sent before it is received, so
// the processes are dead before the head starts their successors, whichever direction of the link is cut.
constexpr std::chrono::milliseconds heartbeat{500};  // between two messages of a node, at most
constexpr std::chrono::milliseconds lease{2000};
constexpr std::chrono::milliseconds silence{3000};
static_assert(heartbeat < lease && lease < silence);

constexpr std::chrono::milliseconds turn{20};  // how often the head and a node look around

}  // namespace cluster
