// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/node/limits.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <sstream>

namespace multinode {

namespace {

template <class Number>
void lower(std::optional<Number>& limit, Number value) {
  limit = std::min(limit.value_or(value), value);
}

// The number after `name` in a file of names and numbers.
std::optional<std::int64_t> value_in(const std::filesystem::path& file, std::string_view name) {
  std::istringstream words(read_text(file).value_or(""));
  std::string word;
  for (std::int64_t value = 0; words >> word >> value;)
    if (word == name) return value;
  return std::nullopt;
}

// Calls `visit` with mount/path, mount/(its parent) ... mount. Without a cgroup namespace `path` is the host's, and the
// mount may begin further down: then only `mount` exists.
template <class Visit>
void to_the_top(const std::filesystem::path& mount, std::filesystem::path path, Visit visit) {
  for (path = path.relative_path(); !path.empty(); path = path.parent_path()) visit(mount / path);
  visit(mount);
}

}  // namespace

std::vector<int> allowed_cpus() {
  for (std::size_t sets = 1;; sets *= 2) {  // the kernel rejects a set that is smaller than its own
    std::vector<cpu_set_t> set(sets);
    const std::size_t bytes = sets * sizeof(cpu_set_t);
    const int result = sched_getaffinity(0, bytes, set.data());
    if (result < 0 && errno == EINVAL && sets < 1024) continue;
    check_errno(result, "sched_getaffinity");
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < 8 * bytes; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.data())) cpus.push_back(static_cast<int>(cpu));
    return cpus;
  }
}

int usable_cpus(const std::filesystem::path& root) {
  const auto allowed = static_cast<double>(allowed_cpus().size());
  return static_cast<int>(std::max(1.0, std::min(allowed, read_cgroup(root).cpus.value_or(allowed))));
}

std::vector<int> cpus_in(const std::string& list) {
  std::vector<int> all;
  std::istringstream parts(list);
  for (int first = 0; parts >> first; parts.ignore(1, ',')) {
    int last = first;
    if (parts.peek() == '-') parts.ignore(1) >> last;
    for (int number = first; number <= last; ++number) all.push_back(number);
  }
  return all;
}

Limits read_cgroup(const std::filesystem::path& root) {
  Limits limits;
  std::optional<std::int64_t> own, of_the_limit;  // oom_kills
  const auto lower_memory = [&](const std::filesystem::path& file, const std::filesystem::path& events) {
    const auto kills = value_in(events, "oom_kill");
    if (!own) own = kills;
    const auto bytes =
        read_number<std::int64_t>(file);  // version 1: unlimited is the largest multiple of the page size
    if (!bytes || *bytes >= std::int64_t{1} << 62 || *bytes >= limits.memory_bytes.value_or(INT64_MAX)) return;
    limits.memory_bytes = *bytes;
    of_the_limit = kills;
  };
  const std::filesystem::path mount = root / "sys/fs/cgroup";
  std::istringstream lines(read_text(root / "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controller,controller:path
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")  // version 2
      to_the_top(mount, path, [&](const std::filesystem::path& at) {
        double quota = 0, period = 0;
        std::istringstream maximum(read_text(at / "cpu.max").value_or(""));  // "150000 100000" or "max 100000"
        if (maximum >> quota >> period && period > 0) lower(limits.cpus, quota / period);
        lower_memory(at / "memory.max", at / "memory.events");
      });
    if (controllers.find(",cpu,") != std::string::npos)
      to_the_top(mount / "cpu", path, [&](const std::filesystem::path& at) {
        const double quota = read_number<double>(at / "cpu.cfs_quota_us").value_or(-1);
        const double period = read_number<double>(at / "cpu.cfs_period_us").value_or(0);
        if (quota > 0 && period > 0) lower(limits.cpus, quota / period);
      });
    if (controllers.find(",memory,") != std::string::npos)
      to_the_top(mount / "memory", path, [&](const std::filesystem::path& at) {
        lower_memory(at / "memory.limit_in_bytes", at / "memory.oom_control");
      });
  }
  if (own) limits.oom_kills = *own + of_the_limit.value_or(0);
  return limits;
}

std::string OomWatch::reason(std::string_view unknown) const {
  const Limits now = read_cgroup(root_);
  if (!now.oom_kills || !before_) return std::string(unknown);
  if (*now.oom_kills <= *before_) return "";
  return ": out of memory" +
         (now.memory_bytes ? " (limit " + std::to_string(*now.memory_bytes >> 20) + " MiB)" : std::string());
}

double seconds_without_a_cpu() {
  double ran = 0, waited = 0;  // ns
  std::istringstream(read_text("/proc/thread-self/schedstat").value_or("")) >> ran >> waited;
  return waited / 1e9;
}

std::int64_t memory_bytes() { return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

std::int64_t usable_memory(const std::filesystem::path& root) {
  const std::int64_t all = memory_bytes();
  return std::min(all, read_cgroup(root).memory_bytes.value_or(all));
}

std::optional<rlim_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  check_errno(getrlimit(resource, &limit), "getrlimit");
  return limit.rlim_cur == RLIM_INFINITY ? std::nullopt : std::optional(limit.rlim_cur);
}

}  // namespace multinode
