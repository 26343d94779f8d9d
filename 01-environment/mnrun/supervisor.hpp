// supervisor.hpp: the event loop: starts the processes of this node and waits until they have ended.
#pragma once

#include <mnrun/agents.hpp>

namespace mnrun {

// Runs the program to its end, in one or several attempts. Returns mnrun's exit status, after printing the reason on
// stderr.
int supervise(Options options);

}  // namespace mnrun
