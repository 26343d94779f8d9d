#include "explore/probes.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#ifdef EXPLORE_HAVE_HWLOC
#include <hwloc.h>
#endif

#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace explore {

namespace {

using multinode::Environment, multinode::read_text;
using nlohmann::json;

template <class T>
json known(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

#ifdef EXPLORE_HAVE_HWLOC

// Objects of `type` that contain at least one of `cpus`.
std::vector<int> objects_with(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_const_bitmap_t cpus) {
  std::vector<int> numbers;
  for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(topology, type, o)) != nullptr;)
    if (hwloc_bitmap_intersects(o->cpuset, cpus)) numbers.push_back(static_cast<int>(o->os_index));
  return numbers;
}

#endif

json read_gpus(const std::filesystem::path& root) {
  const multinode::Gpus seen = multinode::visible_gpus();
  json gpus = {{"driver", multinode::nvidia_driver(root).value_or("none")}, {"devices", json::array()}};
  for (const multinode::Gpu& gpu : seen.devices) {
    gpus["devices"].push_back({{"name", gpu.name}, {"uuid", gpu.uuid}, {"pci", gpu.pci}});
    if (gpu.memory_bytes) gpus["devices"].back()["memory_bytes"] = *gpu.memory_bytes;
  }
  if (seen.devices.empty())
    gpus["none_because"] = gpus["driver"] == "none" ? "NVIDIA's driver is not loaded" : seen.none_because;
  return gpus;
}

json read_rdma(const std::filesystem::path& sysfs) {
  json all = json::array();
  for (const multinode::RdmaPort& port : multinode::rdma_ports(sysfs))
    all.push_back({{"device", port.device},
                   {"port", port.number},
                   {"state", known(port.state)},
                   {"rate", known(port.rate)},
                   {"link_layer", known(port.link_layer)},
                   {"interface", known(read_text(port.folder / "gid_attrs/ndevs/0"))},  // of a RoCE port
                   {"firmware", known(read_text(sysfs / "class/infiniband" / port.device / "fw_ver"))}});
  return all;
}

json read_network(const std::filesystem::path& sysfs) {
  json all = json::array();
  for (const multinode::Interface& interface : multinode::interfaces(sysfs))
    all.push_back({{"name", interface.name},
                   {"state", known(interface.state)},
                   {"speed_mbit", known(interface.speed_mbit)},
                   {"mtu", known(interface.mtu)},
                   {"addresses", interface.addresses}});
  return all;
}

// The versions that World compares, the kernel and the distribution.
json read_versions(const std::filesystem::path& root) {
  json versions = json::object();
  for (const auto& [name, version] : multinode::versions()) versions[name] = version;
  utsname names{};
  uname(&names);
  versions["kernel"] = names.release;
  std::istringstream lines(read_text(root / "etc/os-release").value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("PRETTY_NAME=")) {
      std::erase(line, '"');
      versions["system"] = line.substr(line.find('=') + 1);
    }
  return versions;
}

json read_limits() {
  std::error_code error;
  const auto shm = std::filesystem::space("/dev/shm", error);
  return {{"memlock_bytes", known(multinode::soft_limit(RLIMIT_MEMLOCK))},
          {"open_files", known(multinode::soft_limit(RLIMIT_NOFILE))},
          {"shm_bytes", error ? json() : json(shm.capacity)}};
}

// The traces of a container, each {kind, found}: the name of a file or of a variable, never a variable's value.
json read_container(const Environment& environment, const std::filesystem::path& root) {
  json marks = json::array();
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

  for (const auto& [kind, file] : {std::pair{"docker", "/.dockerenv"},
                                   {"podman", "/run/.containerenv"},
                                   {"singularity", "/.singularity.d"},
                                   {"kubernetes", "/var/run/secrets/kubernetes.io"}})
    if (multinode::is_there(root.string() + file)) mark(kind, file);

  const std::string cgroups = read_text(root / "proc/self/cgroup").value_or("");
  for (const auto& [kind, name] : {std::pair{"kubernetes", "kubepods"},
                                   {"docker", "docker"},
                                   {"podman", "libpod"},
                                   {"lxc", "/lxc"},
                                   {"containerd", "containerd"}})
    if (cgroups.find(name) != cgroups.npos) mark(kind, "/proc/self/cgroup");

  // Where "/" is mounted from: the fourth field is the folder that it is, the fifth the place where it appears.
  std::istringstream lines(read_text(root / "proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, from, to;
    if (fields >> id >> parent >> device >> from >> to && to == "/" &&
        (from.find("enroot") != from.npos || from.find("/pyxis_") != from.npos)) {
      mark("enroot", "/proc/self/mountinfo");
      break;
    }
  }
  return marks;
}

}  // namespace

json read_cpu(const std::vector<int>& cpus, [[maybe_unused]] const std::string& synthetic) {
  json cpu = {{"allowed", multinode::ranges(cpus)},
              {"count", cpus.size()},
              {"cores", nullptr},
              {"numa_nodes", nullptr},
              {"machine", nullptr}};
#ifdef EXPLORE_HAVE_HWLOC
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) < 0) return cpu;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology(made, &hwloc_topology_destroy);
  // The whole machine, with the parts that a container may not use. hwloc leaves out devices, which are slow to find.
  hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(made, synthetic.c_str()) < 0)
    throw std::invalid_argument("not a topology: " + synthetic);
  if (hwloc_topology_load(made) < 0) return cpu;

  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> set(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
  for (const int number : cpus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(number));
  cpu["cores"] = objects_with(made, HWLOC_OBJ_CORE, set.get()).size();
  cpu["numa_nodes"] = multinode::ranges(objects_with(made, HWLOC_OBJ_NUMANODE, set.get()));
  hwloc_obj* const package = hwloc_get_obj_by_type(made, HWLOC_OBJ_PACKAGE, 0);
  const char* const model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  cpu["machine"] = {{"model", model ? json(model) : json()},
                    {"cpus", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_PU)},
                    {"cores", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_CORE)},
                    {"packages", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_PACKAGE)},
                    {"numa_nodes", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_NUMANODE)}};
#endif
  return cpu;
}

json predict_threads(const multinode::Environment& environment, std::size_t cpus) {
  std::size_t threads = cpus;
  std::string from = "CPU set";
  for (const std::string variable : {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT"}) {
    const auto found = environment.find(variable);
    if (found == environment.end()) continue;
    std::string_view text = found->second;
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    // Of a list (OMP_NUM_THREADS=8,2) the first.
    const auto count = multinode::number_of<std::size_t>(text.substr(0, text.find_first_of(", ")));
    if (count && *count > 0 && (variable == "OMP_NUM_THREADS" || *count < threads)) threads = *count, from = variable;
  }
  return {{"openmp", threads}, {"openmp_from", from}};
}

json read_node(const Environment& environment, const std::filesystem::path& root) {
  const std::vector<int> cpus = multinode::allowed_cpus();
  const multinode::Limits cgroup = multinode::read_cgroup(root);
  return {{"cpu", read_cpu(cpus)},
          {"threads", predict_threads(environment, cpus.size())},
          {"memory_bytes", multinode::memory_bytes()},
          {"gpus", read_gpus(root)},
          {"rdma", read_rdma(root / "sys")},
          {"network", read_network(root / "sys")},
          {"versions", read_versions(root)},
          {"limits", read_limits()},
          {"cgroup", {{"cpus", known(cgroup.cpus)}, {"memory_bytes", known(cgroup.memory_bytes)}}},
          {"container", read_container(environment, root)}};
}

json find_required(const Required& required, const std::string& path) {
  json all = json::array();
  const auto add = [&](const char* kind, const std::string& name, const json& found, const json& problem) {
    all.push_back({{"kind", kind}, {"name", name}, {"found", found}, {"problem", problem}});
  };
  for (const std::string& name : required.files)
    if (access(name.c_str(), R_OK) == 0)
      add("file", name, name, nullptr);
    else
      add("file", name, nullptr, std::strerror(errno));
  for (const std::string& name : required.commands) try {
      add("command", name, multinode::find_program(name, path), nullptr);
    } catch (const multinode::StartError& error) {
      const std::string why = error.what();  // "cannot start 'simulate': not found on the PATH"
      add("command", name, nullptr, why.substr(why.find("': ") + 3));
    }
  for (const std::string& name : required.libraries)
    if (void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      dlclose(library);
      add("library", name, name, nullptr);
    } else {
      const std::string why = dlerror();
      add("library", name, nullptr, why.starts_with(name + ": ") ? why.substr(name.size() + 2) : why);
    }
  return all;
}

}  // namespace explore
