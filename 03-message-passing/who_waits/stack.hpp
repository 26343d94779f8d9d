// stack.hpp: what a process does that is in no recorded call.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace who_waits {

// R, S, D, T ... as in /proc: R if any thread runs; '?': there is no such process.
char process_state(pid_t pid);

// "in work() <- step() <- main()", by gdb or eu-stack; "" if neither is there or allowed.
std::string stack_of(pid_t pid);

// The standard output of a command, which is killed after `limit`; "" if it cannot be started.
std::string output_of(const std::vector<std::string>& command, std::chrono::seconds limit);

}  // namespace who_waits
