#include "granted.hpp"

#include <multinode/check.hpp>
#include <multinode/limits.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace node_check {

void unbind() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  multinode::check_errno(sched_setaffinity(0, sizeof all, &all), "sched_setaffinity");
}

std::size_t cpus_to_use() {
  const double allowed = static_cast<double>(multinode::allowed_cpus().size());
  return static_cast<std::size_t>(
      std::max(1.0, std::ceil(std::min(allowed, multinode::read_cgroup("/").cpus.value_or(allowed)))));
}

double memory_bytes() {
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return std::min(
      machine,
      static_cast<double>(multinode::read_cgroup("/").memory_bytes.value_or(std::numeric_limits<std::int64_t>::max())));
}

}  // namespace node_check
