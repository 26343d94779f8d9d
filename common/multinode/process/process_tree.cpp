// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/process/process_tree.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace multinode {

void adopt_orphans() { check_errno(prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl(PR_SET_CHILD_SUBREAPER)"); }

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  for (const std::string& name : names_in("/proc")) {
    const auto pid = parse_decimal<pid_t>(name);
    const auto stat = pid ? read_text("/proc/" + name + "/stat") : std::nullopt;  // "17 (name) S 1 ..."
    if (!stat) continue;
    const std::size_t name_ends = stat->rfind(") ");
    if (name_ends == stat->npos || stat->compare(name_ends + 2, 2, "Z ") == 0) continue;
    const std::size_t parent = name_ends + 4;
    if (parent < stat->size())
      children.emplace(number_of<pid_t>(stat->substr(parent, stat->find(' ', parent) - parent)).value_or(0), *pid);
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
