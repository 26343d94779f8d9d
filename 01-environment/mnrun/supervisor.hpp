// supervisor.hpp: the event loop: starts this node's processes and sees them to their end.
#pragma once

#include <mnrun/agents.hpp>

namespace mnrun {

// Runs the program to its end, restarts included. Returns mnrun's exit status; its one line is on stderr then.
int supervise(Options options);

}  // namespace mnrun
