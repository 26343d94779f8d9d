// lease.hpp: how long each side of a node's call believes in the other one.
#pragma once

#include <chrono>

namespace cluster {

// A node's processes may run until `lease` after the node sent the last beat that came back. The head gives a node up
// `silence` after the last beat that it received. The beat was sent before it was received, so the node's processes are
// dead before the head starts their successors, whichever direction of the link is cut.
constexpr std::chrono::milliseconds heartbeat{500};  // between two beats
constexpr std::chrono::milliseconds lease{2000};
constexpr std::chrono::milliseconds silence{3000};
static_assert(heartbeat < lease && lease < silence);

}  // namespace cluster
