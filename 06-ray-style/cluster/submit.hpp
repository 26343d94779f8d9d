// submit.hpp: `cluster submit`, which runs a job and shows what it says.
#pragma once

namespace cluster {

// argv[0] is the program's name, argv[1] the first word after `submit`. Returns the exit status: the job's; 130 after
// Ctrl-C. Throws UsageError for a wrong command line and std::runtime_error where the head is gone.
int submit(int argc, const char* const* argv);

}  // namespace cluster
