#include "explore/limits.hpp"

#include "explore/files.hpp"

#include <multinode/check.hpp>

#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <functional>
#include <sstream>

namespace explore {

namespace {

nlohmann::json soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  multinode::check_errno(getrlimit(resource, &limit), "getrlimit");
  return limit.rlim_cur == RLIM_INFINITY ? nlohmann::json() : nlohmann::json(limit.rlim_cur);
}

void lower(nlohmann::json& limit, double value) {
  if (limit.is_null() || value < limit.get<double>()) limit = value;
}

void lower_to_bytes(nlohmann::json& limit, std::optional<long long> bytes) {
  const long long no_limit = 1LL << 62;  // version 1 says unlimited as the largest multiple of a page
  if (bytes && *bytes < no_limit && (limit.is_null() || *bytes < limit.get<long long>())) limit = *bytes;
}

// Calls `visit` with MOUNT/PATH, MOUNT/its parent ... MOUNT. Without a cgroup namespace PATH is the host's, and what is
// mounted here may begin further down: then only MOUNT exists.
void to_the_top(const std::filesystem::path& mount, std::filesystem::path path,
                const std::function<void(const std::filesystem::path&)>& visit) {
  for (path = path.relative_path(); !path.empty(); path = path.parent_path()) visit(mount / path);
  visit(mount);
}

}  // namespace

nlohmann::json read_limits() {
  struct statvfs shm {};
  const bool has_shm = statvfs("/dev/shm", &shm) == 0;
  return {{"memlock_bytes", soft_limit(RLIMIT_MEMLOCK)},
          {"open_files", soft_limit(RLIMIT_NOFILE)},
          {"shm_bytes", has_shm ? nlohmann::json(shm.f_blocks * shm.f_frsize) : nlohmann::json()}};
}

nlohmann::json read_memory(const std::filesystem::path& root) {
  std::istringstream words(read_text(root / "proc/meminfo").value_or(""));
  for (std::string word; words >> word;)
    if (long long kib = 0; word == "MemTotal:" && words >> kib) return kib * 1024;
  return nullptr;
}

nlohmann::json read_cgroup(const std::filesystem::path& root) {
  nlohmann::json limits = {{"cpus", nullptr}, {"memory_bytes", nullptr}};
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
        long long quota = 0, period = 0;
        std::istringstream maximum(read_text(at / "cpu.max").value_or(""));  // "150000 100000" or "max 100000"
        if (maximum >> quota >> period && period > 0) lower(limits["cpus"], double(quota) / double(period));
        lower_to_bytes(limits["memory_bytes"], read_number(at / "memory.max"));
      });
    if (controllers.find(",cpu,") != std::string::npos)
      to_the_top(mount / "cpu", path, [&](const std::filesystem::path& at) {
        const long long quota = read_number(at / "cpu.cfs_quota_us").value_or(-1);
        const long long period = read_number(at / "cpu.cfs_period_us").value_or(0);
        if (quota > 0 && period > 0) lower(limits["cpus"], double(quota) / double(period));
      });
    if (controllers.find(",memory,") != std::string::npos)
      to_the_top(mount / "memory", path, [&](const std::filesystem::path& at) {
        lower_to_bytes(limits["memory_bytes"], read_number(at / "memory.limit_in_bytes"));
      });
  }
  return limits;
}

nlohmann::json read_container(const std::filesystem::path& root, const multinode::Environment& environment) {
  nlohmann::json marks = nlohmann::json::array();
  const auto mark = [&](const std::string& kind, const std::string& told_by) {
    marks.push_back({{"kind", kind}, {"told_by", told_by}});
  };
  for (const auto& [kind, variable] : {std::pair{"kubernetes", "KUBERNETES_SERVICE_HOST"},
                                       {"apptainer", "APPTAINER_NAME"},
                                       {"singularity", "SINGULARITY_NAME"},
                                       {"charliecloud", "CH_RUNNING"},
                                       {"enroot", "ENROOT_ROOTFS"}})
    if (environment.contains(variable)) mark(kind, variable);
  if (const auto found = environment.find("container"); found != environment.end() && !found->second.empty())
    mark(found->second, "container");  // systemd's convention: podman, lxc, systemd-nspawn

  std::error_code error;
  for (const auto& [kind, file] : {std::pair{"docker", "/.dockerenv"},
                                   {"podman", "/run/.containerenv"},
                                   {"singularity", "/.singularity.d"},
                                   {"kubernetes", "/var/run/secrets/kubernetes.io"}})
    if (std::filesystem::exists(root.string() + file, error)) mark(kind, file);

  const std::string cgroups = read_text(root / "proc/self/cgroup").value_or("");
  for (const auto& [kind, name] : {std::pair{"kubernetes", "kubepods"},
                                   {"docker", "docker"},
                                   {"podman", "libpod"},
                                   {"lxc", "/lxc"},
                                   {"containerd", "containerd"}})
    if (cgroups.find(name) != std::string::npos) mark(kind, "/proc/self/cgroup");

  // Where "/" is mounted from: the fourth field is the folder that it is, the fifth the place where it appears.
  std::istringstream lines(read_text(root / "proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, from, to;
    if (fields >> id >> parent >> device >> from >> to && to == "/" && line.find("/enroot/") != std::string::npos) {
      mark("enroot", "/proc/self/mountinfo");
      break;
    }
  }
  return marks;
}

}  // namespace explore
