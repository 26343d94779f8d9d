#include "granted.hpp"

#include <multinode/check.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

namespace node_check {

namespace {

void lower(std::optional<double>& limit, double value) { limit = std::min(limit.value_or(value), value); }

// Calls `visit` with MOUNT/PATH, its parent ... MOUNT. Where PATH is the host's and not this container's, only MOUNT is
// there.
template <class Visit>
void to_the_top(const std::filesystem::path& mount, std::filesystem::path path, Visit visit) {
  for (path = path.relative_path(); !path.empty(); path = path.parent_path()) visit(mount / path);
  visit(mount);
}

double number_in(const std::filesystem::path& file) {  // -1: "max", or no such file
  double number = -1;
  std::ifstream in(file);
  return in >> number ? number : -1;
}

}  // namespace

void unbind() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  multinode::check_errno(sched_setaffinity(0, sizeof all, &all), "sched_setaffinity");
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  multinode::check_errno(sched_getaffinity(0, sizeof set, &set), "sched_getaffinity");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

Limits read_cgroup(const std::filesystem::path& root) {
  Limits limits;
  const auto lower_memory = [&](double bytes) {
    if (bytes >= 0 && bytes < 0x1p62) lower(limits.memory, bytes);  // version 1: no limit is a very high one
  };
  const std::filesystem::path mount = root / "sys/fs/cgroup";
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string id, controllers, path;
       std::getline(lines, id, ':') && std::getline(lines, controllers, ':') && std::getline(lines, path);) {
    const auto has = [&](const char* name) { return ("," + controllers + ",").find(name) != std::string::npos; };
    if (controllers.empty())  // version 2
      to_the_top(mount, path, [&](const std::filesystem::path& at) {
        double quota = 0, period = 0;
        std::ifstream maximum(at / "cpu.max");  // "150000 100000" or "max 100000"
        if (maximum >> quota >> period && period > 0) lower(limits.cpus, quota / period);
        lower_memory(number_in(at / "memory.max"));
      });
    if (has(",cpu,"))
      to_the_top(mount / "cpu", path, [&](const std::filesystem::path& at) {
        const double quota = number_in(at / "cpu.cfs_quota_us"), period = number_in(at / "cpu.cfs_period_us");
        if (quota > 0 && period > 0) lower(limits.cpus, quota / period);
      });
    if (has(",memory,"))
      to_the_top(mount / "memory", path,
                 [&](const std::filesystem::path& at) { lower_memory(number_in(at / "memory.limit_in_bytes")); });
  }
  return limits;
}

std::size_t cpus_to_use() {
  const double allowed = static_cast<double>(allowed_cpus().size());
  return static_cast<std::size_t>(std::max(1.0, std::ceil(std::min(allowed, read_cgroup("/").cpus.value_or(allowed)))));
}

double memory_bytes() {
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return std::min(machine, read_cgroup("/").memory.value_or(machine));
}

}  // namespace node_check
