#include "look.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

namespace node_check {
namespace {

std::string gib(double bytes) { return fmt::format("{:.2f} GiB", bytes / 0x1p30); }

std::string or_none(const std::vector<std::string>& parts) { return parts.empty() ? "none" : multinode::join(parts); }

Finding limit(const std::string& what, __rlimit_resource resource, const std::string& unit, double needed,
              const std::string& what_to_do) {
  rlimit now{};
  multinode::check_errno(getrlimit(resource, &now), "getrlimit");
  Finding finding{what, "unlimited", "", "equal", true, ""};
  if (now.rlim_cur == RLIM_INFINITY) return finding;
  finding.value = now.rlim_cur;
  finding.unit = unit;
  if (static_cast<double>(now.rlim_cur) < needed) {
    finding.ok = false;
    finding.why = what_to_do;
  }
  return finding;
}

// With an address by which others reach this node: bridges and the ends of containers' networks have random names.
std::vector<std::string> interfaces() {
  std::vector<std::string> texts;
  for (const auto& [name, addresses] : multinode::addresses_by_interface()) {
    const auto is_local = [](const std::string& address) {
      return address.starts_with("127.") || address.starts_with("::1/") || address.starts_with("fe80:");
    };
    const std::filesystem::path folder = "/sys/class/net/" + name;
    if (std::ranges::all_of(addresses, is_local) || multinode::read_text(folder / "operstate") == "down") continue;
    texts.push_back(name + " mtu " + multinode::read_text(folder / "mtu").value_or("unknown"));
  }
  return texts;
}

}  // namespace

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

std::filesystem::path temporary_folder() {
  const char* const given = std::getenv("TMPDIR");
  return given && *given ? given : "/tmp";
}

std::filesystem::path folder_of_examples() {
  auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  while (!std::filesystem::exists(folder / "01-environment/explore")) {
    if (folder == folder.parent_path()) return {};
    folder = folder.parent_path();
  }
  return folder;
}

Findings look_at_limits(const std::filesystem::path& root, const std::filesystem::path& tmp) {
  const bool rdma = !rdma_ports(root / "sys").empty();
  Findings all{
      limit("memlock", RLIMIT_MEMLOCK, "bytes", rdma ? 0x1p62 : 0,
            "RDMA registers memory, and this limit stops it: set memlock to unlimited (limits.conf, LimitMEMLOCK= of "
            "slurmd, --ulimit memlock=-1 of a container)"),
      limit("open_files", RLIMIT_NOFILE, "", 1024,
            "a rank needs connections to all others: raise nofile to 1024 at least"),
      limit("processes", RLIMIT_NPROC, "", 1024, "ranks, their threads and compilers: raise nproc to 1024 at least"),
      limit("address_space", RLIMIT_AS, "bytes", 0x1p32,
            "MPI and CUDA map far more than they use: ulimit -v unlimited"),
      limit("core_size", RLIMIT_CORE, "bytes", 0, ""),
      limit("stack", RLIMIT_STACK, "bytes", 0x1p20, "raise stack to 8 MiB")};
  if (auto& memlock = all.front(); !rdma && memlock.value != "unlimited")
    memlock.why = "enough, because no RDMA device is here: with one, it must be unlimited";

  const std::size_t cpus = multinode::allowed_cpus().size();
  const multinode::Limits cgroup = multinode::read_cgroup(root);
  all.push_back({"cpus", cpus, "", "equal", true, ""});
  if (cgroup.cpus)
    all.push_back(
        {"cgroup_cpus", *cgroup.cpus, "", "equal", *cgroup.cpus >= 1,
         *cgroup.cpus >= 1 ? "" : fmt::format("the cgroup allows {:g} of a CPU: raise cpu.max", *cgroup.cpus)});
  if (cgroup.memory_bytes) all.push_back({"cgroup_memory", *cgroup.memory_bytes, "bytes", "equal", true, ""});
  all.push_back({"memory", memory_bytes() / 0x1p30, "GiB", "equal", true, ""});
  all.push_back(look_at_folder("shm", "/dev/shm", 0x1p25,
                               "MPI and NCCL pass data between the ranks of a node there: mount a larger tmpfs "
                               "(--shm-size=1g or --ipc=host of a container)",
                               20));
  all.push_back(look_at_folder("tmp", tmp, 0x1p26, "make room, or let TMPDIR name a folder that can be written", 5000));
  return all;
}

Finding look_at_folder(const std::string& what, const std::filesystem::path& folder, double needed,
                       const std::string& what_to_do, double most_ms) {
  Finding finding{what + "_bytes", nullptr, "bytes", "equal", false, ""};
  const auto wrong = [&](const std::string& why) {
    finding.why = folder.string() + " " + why + ": " + what_to_do;
    return finding;
  };
  // What is full was filled by somebody: that is no fault of the node, which is not to be drained for it.
  const auto full = [&](const std::string& free) {
    finding.ok = std::nullopt;
    finding.why = folder.string() + " is full, " + free + ": somebody filled it; remove files that nobody needs";
    return finding;
  };
  const auto cannot_write = [&](int error) {
    if (error == ENOSPC || error == EDQUOT) return full("a file of 1 MiB has no room");
    return wrong("cannot be written (" + std::string(std::strerror(error)) + ")");
  };

  struct statvfs space {};
  if (statvfs(folder.c_str(), &space) != 0) return wrong("cannot be used (" + std::string(std::strerror(errno)) + ")");
  const double size = static_cast<double>(space.f_blocks) * static_cast<double>(space.f_frsize);
  finding.value = size;

  std::string name = (folder / "node_check-XXXXXX").string();
  const multinode::Descriptor file(mkstemp(name.data()));
  if (!file) return cannot_write(errno);
  unlink(name.c_str());
  const std::string text(1 << 20, 'x');
  std::string back(text.size(), ' ');
  if (const auto written = pwrite(file.get(), text.data(), text.size(), 0); written != std::ssize(text))
    return cannot_write(written < 0 ? errno : ENOSPC);
  if (pread(file.get(), back.data(), back.size(), 0) != std::ssize(back) || back != text)
    return wrong("gives back other data than were written");
  double sync_ms = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (pwrite(file.get(), text.data(), 4096, 0) != 4096 || fsync(file.get()) != 0) return cannot_write(errno);
    sync_ms = std::min(sync_ms, 1000 * multinode::seconds_since(start));
  }

  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (size < needed) return wrong("has only " + gib(size));
  if (free < needed) return full("with " + gib(free) + " free");
  if (sync_ms > most_ms)
    return wrong(fmt::format("takes {:.0f} ms to sync 4 KiB (look at its disk, LD_PRELOAD and tracers)", sync_ms));
  finding.ok = true;
  finding.why = gib(free) + " free";
  return finding;
}

std::vector<std::pair<std::string, std::string>> mounts_in(const std::filesystem::path& file) {
  std::vector<std::pair<std::string, std::string>> mounts;
  std::istringstream lines(multinode::read_text(file).value_or(""));
  for (std::string line, device, folder, kind; std::getline(lines, line);) {
    if (!(std::istringstream(line) >> device >> folder >> kind)) continue;
    for (std::size_t at = 0; (at = folder.find('\\', at)) != std::string::npos; ++at)
      folder.replace(at, 4, 1, static_cast<char>(std::strtol(folder.substr(at + 1, 3).c_str(), nullptr, 8)));
    mounts.emplace_back(folder, kind);
  }
  return mounts;
}

Finding look_at_mounts(const std::filesystem::path& root, std::chrono::milliseconds timeout) {
  // Of file servers. What a user can mount (FUSE) is no fault of the node.
  static const std::set<std::string> kinds{"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs"},
      disks{"ext3", "ext4", "xfs", "btrfs", "zfs"};
  std::set<std::string> all;
  std::map<std::string, std::future<int>> answers;  // errno
  for (const auto& [folder, kind] : mounts_in(root / "proc/self/mounts")) {
    if (disks.contains(kind)) all.insert(folder);
    if (!kinds.contains(kind)) continue;
    all.insert(folder);
    std::packaged_task<int()> ask([folder = folder] {
      struct statvfs space {};
      return statvfs(folder.c_str(), &space) == 0 ? 0 : errno;
    });
    answers[folder] = ask.get_future();
    std::thread(std::move(ask)).detach();  // a server that is gone may keep it for ever
  }
  if (all.empty()) return absent("mounts", "no disk and no file server is mounted");
  std::string wrong;
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (auto& [folder, answer] : answers)
    if (answer.wait_until(until) != std::future_status::ready)
      add(wrong, folder + " does not answer");
    else if (const int error = answer.get(); error != 0 && error != EACCES)  // a server that refuses us has answered
      add(wrong, folder + " is stale (" + std::strerror(error) + ")");
  if (!wrong.empty()) wrong += ": look at the file server and its network, and mount it again";
  return {"mounts", multinode::join(all), "", "equal", wrong.empty(), wrong};
}

Gpus gpus_of_driver(const std::filesystem::path& root) {
  Gpus gpus{"NVIDIA's driver"};
  const auto folder = root / "proc/driver/nvidia/gpus";
  for (const auto& address : multinode::names_in(folder)) {
    const std::string text = multinode::read_text(folder / address / "information").value_or(""), key = "Model:";
    const auto from = text.find_first_not_of(" \t", text.find(key) + key.size());
    const bool told = text.find(key) != std::string::npos && from != std::string::npos;
    gpus.names.push_back(told ? text.substr(from, text.find('\n', from) - from) : address);
  }
  return gpus;
}

std::vector<std::string> rdma_ports(const std::filesystem::path& sysfs) {
  std::vector<std::string> ports;
  for (const multinode::RdmaPort& port : multinode::rdma_ports(sysfs))
    ports.push_back(port.name() + " " + port.state.value_or("") + " " + port.rate.value_or(""));
  return ports;
}

Findings look_at_pci(const std::filesystem::path& sysfs, std::optional<std::size_t> gpus_seen, const std::string& by) {
  struct Kind {
    std::map<std::string, int> drivers;
    std::string wrong;
  };
  Kind gpu, nic;
  for (const multinode::PciDevice& device : multinode::pci_devices(sysfs)) {
    const bool nvidia = device.vendor == "0x10de" && device.is_display();
    if (!nvidia && !device.is_network()) continue;
    std::error_code unbound;
    const std::string driver = std::filesystem::read_symlink(device.folder / "driver", unbound).filename();
    ++(nvidia ? gpu : nic).drivers[driver.empty() ? "without a driver" : driver];
    if (nvidia && driver.empty())
      add(gpu.wrong, "GPU " + device.address + " has no driver: load nvidia (modprobe nvidia, dkms status, dmesg)");
    else if (nvidia && driver == "nouveau")
      add(gpu.wrong,
          "GPU " + device.address + " has the driver nouveau, which CUDA cannot use: install NVIDIA's driver");
    else if (!nvidia && driver.empty())
      add(nic.wrong, "network interface " + device.address + " (vendor " + device.vendor +
                         ") has no driver: load it (lspci -k, dmesg)");
    else if (device.is_infiniband() && driver == "mlx5_core" && !multinode::is_there(device.folder / "infiniband"))
      add(nic.wrong, "InfiniBand device " + device.address + " has no RDMA driver: load mlx5_ib");
  }
  const auto bound = gpu.drivers.find("nvidia");
  if (gpus_seen == 0U && gpu.wrong.empty() && bound != gpu.drivers.end())
    gpu.wrong = std::to_string(bound->second) + " GPUs on the PCI bus have a driver, and " + by +
                " sees none: look at nvidia-smi, /dev/nvidia*, and the "
                "versions of driver and libcuda; if this job is to have no GPU, set CUDA_VISIBLE_DEVICES to -1";

  Findings all;
  for (const auto& [name, kind] : {std::pair{"pci_gpus", &gpu}, std::pair{"pci_nics", &nic}}) {
    std::vector<std::string> texts;
    for (const auto& [driver, count] : kind->drivers) texts.push_back(std::to_string(count) + " " + driver);
    all.push_back({name, or_none(texts), "", "equal", kind->wrong.empty(), kind->wrong});
    if (texts.empty()) all.back().ok = std::nullopt, all.back().why = "none in " + (sysfs / "bus/pci/devices").string();
  }
  return all;
}

Findings look_at_devices(const std::filesystem::path& sysfs, const std::optional<Gpus>& gpus) {
  const std::vector<std::string> rdma = rdma_ports(sysfs);
  Findings all{{"interfaces", or_none(interfaces()), "", "equal", true, "up, with an address"},
               {"rdma_ports", or_none(rdma), "", "equal", true, ""}};
  if (rdma.empty()) {
    all.back().ok = std::nullopt;
    all.back().why = "no RDMA device in " + (sysfs / "class/infiniband").string();
  } else if (std::ranges::none_of(rdma,
                                  [](const std::string& port) { return port.find(" ACTIVE ") != std::string::npos; })) {
    all.back().ok = false;
    all.back().why = "no RDMA port is ACTIVE: look at the cable, the switch and, on InfiniBand, the subnet manager";
  }
  const bool comparable = gpus && gpus->error.empty() && !std::getenv("CUDA_VISIBLE_DEVICES");
  for (Finding& finding :
       look_at_pci(sysfs, comparable ? std::optional(gpus->names.size()) : std::nullopt, gpus ? gpus->seen_by : ""))
    all.push_back(std::move(finding));
  if (!gpus) {
    all.push_back(absent("gpus", "built without CUDA"));
    return all;
  }
  all.push_back({"gpus", or_none(gpus->names), "", "equal", true, ""});
  if (gpus->names.empty()) all.back().ok = std::nullopt, all.back().why = gpus->seen_by + " sees no GPU";
  if (!gpus->error.empty()) all.back().ok = false, all.back().why = gpus->error;
  return all;
}

using nlohmann::json;

namespace {

// What the node has, by the names of what is wanted. Of several devices the least, so that one that is bad shows.
json facts(const std::filesystem::path& root) {
  const Gpus gpus = gpus_of_driver(root);
  json has{{"gpus", gpus.names.size()}, {"gpu", gpus.names}, {"rdma_ports", 0}};
  if (const auto version = multinode::read_text(root / "sys/module/nvidia/version")) has["driver"] = *version;
  for (const auto& port : multinode::rdma_ports(root / "sys")) {
    if (!port.is_active()) continue;
    has["rdma_ports"] = has["rdma_ports"].get<int>() + 1;
    const double rate = std::atof(port.rate.value_or("0").c_str());
    has["rdma_gbit_per_s"] = std::min(rate, has.value("rdma_gbit_per_s", rate));
  }
  has["cpus"] = multinode::usable_cpus();
  has["memory_gib"] = memory_bytes() / 0x1p30;
  return has;
}

// A pattern for all of the text, or of each text.
bool matches(const json& text, const std::string& pattern) {
  if (text.is_array())
    return !text.empty() && std::ranges::all_of(text, [&](const json& one) { return matches(one, pattern); });
  return text.is_string() && std::regex_match(text.get<std::string>(), std::regex(pattern));
}

}  // namespace

void check_inventory(const json& wanted) {
  static const std::map<std::string, json> known{{"gpus", 0},    {"rdma_ports", 0},        {"rdma_gbit_per_s", 0},
                                                 {"cpus", 0},    {"memory_gib", 0},        {"gpu", ""},
                                                 {"driver", ""}, {"mounts", json::array()}};
  for (const auto& [name, value] : wanted.items()) {
    const auto kind = known.find(name);
    if (kind == known.end()) throw std::runtime_error("inventory: unknown member '" + name + "'");
    if (std::string(value.type_name()) != kind->second.type_name() || (value.is_number() && value < 0))
      throw std::runtime_error("inventory: '" + name + "' cannot be " + value.dump());
    if (value.is_string()) std::regex{value.get<std::string>()};
    if (value.is_array()) (void)value.get<std::vector<std::string>>();
  }
}

Finding look_at_inventory(const json& wanted, const std::filesystem::path& root) {
  std::string wrong;
  const json has = facts(root);
  std::set<std::string> mounted;
  for (const auto& [folder, kind] : mounts_in(root / "proc/self/mounts")) mounted.insert(folder);
  for (const auto& [name, value] : wanted.items()) {
    const json found = has.value(name, json());
    if (name == "mounts") {
      for (const std::string folder : value)
        if (!mounted.contains(folder)) add(wrong, folder + " is not mounted");
    } else if (value.is_string() ? !matches(found, value) : found < value) {
      add(wrong, fmt::format("{} is {}, and {}{} is wanted", name, found.is_null() ? "unknown" : found.dump(),
                             value.is_number() ? "at least " : "", value.dump()));
    }
  }
  if (!wrong.empty()) wrong += ": the site file lists this as this node's; repair the node or correct the file";
  return {"inventory", wanted.size(), "members", "equal", wrong.empty(), wrong};
}

}  // namespace node_check
