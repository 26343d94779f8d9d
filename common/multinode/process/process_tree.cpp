// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/process/process_tree.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>

namespace multinode {

ProcessState process_state(pid_t pid) {
  // "pid (name) state ppid pgrp session tty tpgid flags ...": see proc(5). The name may hold anything.
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat").value_or("");
  std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  ProcessState process;
  pid_t skipped = 0;
  rest >> process.state >> process.parent >> skipped >> skipped >> skipped >> skipped >> process.flags;
  return process;
}

void adopt_orphans() { check_errno(prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl(PR_SET_CHILD_SUBREAPER)"); }

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  for (const std::string& name : names_in("/proc")) {
    const auto pid = parse_decimal<pid_t>(name);
    const ProcessState process = pid ? process_state(*pid) : ProcessState();
    if (process.state != '?' && process.state != 'Z') children.emplace(process.parent, *pid);
  }
  std::vector<pid_t> found{getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> kill_descendants() {
  std::vector<pid_t> processes = descendants();
  std::erase_if(processes, [](pid_t process) { return kill(process, SIGKILL) != 0; });
  return processes;
}

bool reap_children(const std::function<void(pid_t pid, int status)>& ended) {
  int status = 0;
  pid_t pid = 0;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
    if (ended) ended(pid, status);
  return pid == 0;
}

}  // namespace multinode
