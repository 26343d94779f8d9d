// start.hpp: the command `cluster start`.
#pragma once

namespace cluster {

// argv[0] is "start". Stays until the head or node ends, and returns the exit status. Throws UsageError for a wrong
// command line and std::runtime_error if the head cannot listen, does not answer or is gone. To be called before there
// are threads, which would get the signals.
int start(int argc, const char* const* argv);

}  // namespace cluster
