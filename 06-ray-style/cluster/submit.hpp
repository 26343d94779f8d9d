// submit.hpp: `cluster submit`, which runs a job and shows what it says.
#pragma once

#include "cluster/access.hpp"
#include "cluster/cluster.pb.h"

#include <string>

namespace cluster {

// argv[0] is the program's name, argv[1] the first word after `submit`. Returns the exit status: the job's; 130 after
// Ctrl-C. Throws UsageError for a wrong command line or job and std::runtime_error where the head is gone.
int submit(int argc, const char* const* argv);

// The same for a job that is known already. Every event goes to the file `json` too, unless that is "". Ctrl-C and
// SIGTERM end the job, a second one this process at once; call it before there are other threads, which would get them.
int run_job(const Access& access, const Job& job, const std::string& json);

}  // namespace cluster
