// status.hpp: `cluster status`, which prints nodes and jobs, and waits for nodes.
#pragma once

namespace cluster {

// argv[0] is the program's name, argv[1] the first word after `status`. Returns the exit status: 1 where too few nodes
// came. Throws UsageError for a wrong command line and std::runtime_error where there is no head.
int status(int argc, const char* const* argv);

}  // namespace cluster
