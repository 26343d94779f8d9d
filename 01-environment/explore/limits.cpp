#include "explore/probes.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/node/limits.hpp>

#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <sstream>

namespace explore {

using multinode::read_text;

namespace {

nlohmann::json soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  multinode::check_errno(getrlimit(resource, &limit), "getrlimit");
  return limit.rlim_cur == RLIM_INFINITY ? nlohmann::json() : nlohmann::json(limit.rlim_cur);
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
  const multinode::Limits limits = multinode::read_cgroup(root);
  return {{"cpus", limits.cpus ? nlohmann::json(*limits.cpus) : nlohmann::json()},
          {"memory_bytes", limits.memory_bytes ? nlohmann::json(*limits.memory_bytes) : nlohmann::json()}};
}

nlohmann::json read_container(const std::filesystem::path& root, const multinode::Environment& environment) {
  nlohmann::json marks = nlohmann::json::array();
  const auto mark = [&](const std::string& kind, const std::string& found_at) {
    marks.push_back({{"kind", kind}, {"found", found_at}});
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
    if (fields >> id >> parent >> device >> from >> to && to == "/" &&
        (from.find("enroot") != std::string::npos || from.find("/pyxis_") != std::string::npos)) {
      mark("enroot", "/proc/self/mountinfo");
      break;
    }
  }
  return marks;
}

}  // namespace explore
