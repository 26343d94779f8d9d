// commands.hpp: the commands of `cluster`.
#pragma once

namespace cluster {

// argv[0] is the program's name, argv[1] the first word after the command. All return the exit status, and throw
// UsageError for a wrong command line and std::runtime_error. To be called before there are threads, which would get
// the signals.
int start(int argc, const char* const* argv);   // stays until the head or node ends
int status(int argc, const char* const* argv);  // 1: too few nodes came
int submit(int argc, const char* const* argv);  // the job's status; 130 after Ctrl-C
int logs(int argc, const char* const* argv);    // the job's status
int stop(int argc, const char* const* argv);

}  // namespace cluster
