// process_tree.hpp: a process's state, and all that this one started, in whatever session or process group it is now.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

namespace multinode {

struct ProcessState {
  char state = '?';  // 'S' sleeping, 'T' stopped, 'Z' ended and not yet reaped ...; '?': there is no such process
  pid_t parent = 0;
  unsigned flags = 0;  // the kernel's PF_...
};
ProcessState process_state(pid_t pid);

// A keeper is a small process between a program and its jobs: it calls adopt_orphans(), starts the job, and when the
// job ends, or has to, it ends all that the job has started. Process groups and sessions do not do it, because a
// process leaves them when it likes; cgroups would, but an ordinary user has none that he may change.

// From now on a descendant whose parent ends becomes a child of this process, instead of PID 1's. Throws
// std::system_error.
void adopt_orphans();

// The processes whose ancestor this one is, by /proc, without those that have ended.
std::vector<pid_t> descendants();

// Sends SIGKILL to all descendants; returns those that it reached. A process may start another one meanwhile: repeat it
// while reap_children().
std::vector<pid_t> kill_descendants();

// Reaps the children that have ended, and calls `ended` with the status of each, as waitpid() has it. Returns whether
// this process has children yet; after adopt_orphans(), if not, it has no descendants.
bool reap_children(const std::function<void(pid_t pid, int status)>& ended = {});

}  // namespace multinode
