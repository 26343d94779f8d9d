// daemon.hpp: `cluster start` and `cluster stop`.
#pragma once

namespace cluster {

// argv[0] is the program's name, argv[1] the first word after `start` or `stop`. Both return the exit status and throw
// UsageError for a wrong command line, and std::runtime_error. start() is to be called before there are threads: it
// forks, and returns in both processes, in the daemon when that ends.
int start(int argc, const char* const* argv);
int stop(int argc, const char* const* argv);

}  // namespace cluster
