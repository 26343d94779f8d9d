#include "findings.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

namespace node_check {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

std::string gib(double bytes) { return fmt::format("{:.2f} GiB", bytes / 0x1p30); }

// Adds to what is wrong: "one thing; another thing".
void add(std::string& text, const std::string& part) { text += (text.empty() ? "" : "; ") + part; }

// What is here of a kind. None of it is neither right nor wrong.
Finding listed(const std::string& what, const std::vector<std::string>& devices, const std::string& if_none) {
  if (devices.empty()) return {what, "none", "", "equal", std::nullopt, if_none};
  return {what, multinode::join(devices)};
}

Finding limit(const std::string& what, __rlimit_resource resource, const std::string& unit, double needed,
              const std::string& what_to_do) {
  const auto now = multinode::soft_limit(resource);
  if (!now) return {what, "unlimited"};
  Finding finding{what, *now, unit};
  if (static_cast<double>(*now) < needed) finding.blame(what_to_do);
  return finding;
}

// One folder: its size, whether a file can be written, whether `needed` bytes are free, and whether 4 KiB reach its
// disk in time. In memory they need no time, unless something intercepts system calls.
Finding look_at_folder(const std::string& what, const std::filesystem::path& folder, double needed,
                       const std::string& what_to_do, double most_ms) {
  Finding finding{what + "_bytes", nullptr, "bytes"};
  const auto wrong = [&](const std::string& why) {
    finding.blame(folder.string() + " " + why + ": " + what_to_do);
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

  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (error) return wrong("cannot be used (" + error.message() + ")");
  const double size = static_cast<double>(space.capacity), free = static_cast<double>(space.available);
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

  if (size < needed) return wrong("has only " + gib(size));
  if (free < needed) return full("with " + gib(free) + " free");
  if (sync_ms > most_ms)
    return wrong(fmt::format("takes {:.0f} ms to sync 4 KiB (look at its disk, LD_PRELOAD and tracers)", sync_ms));
  finding.why = gib(free) + " free";
  return finding;
}

// With an address by which others reach this node: bridges and the ends of containers' networks have random names.
std::vector<std::string> interfaces_in_use() {
  std::vector<std::string> texts;
  for (const auto& interface : multinode::interfaces("/sys")) {
    const auto is_local = [](const std::string& address) {
      return address.starts_with("127.") || address.starts_with("::1/") || address.starts_with("fe80:");
    };
    if (std::ranges::all_of(interface.addresses, is_local) || interface.state == "down") continue;
    texts.push_back(interface.name + " mtu " + (interface.mtu ? std::to_string(*interface.mtu) : "unknown"));
  }
  return texts;
}

// GPUs and network interfaces on the PCI bus: each needs a driver.
Findings look_at_pci(const std::filesystem::path& sysfs, const multinode::Gpus& gpus) {
  struct Kind {
    std::map<std::string, int> drivers;
    std::string wrong;
  };
  Kind gpu, nic;
  const auto bus = sysfs / "bus/pci/devices";
  for (const std::string& address : multinode::names_in(bus)) {
    const auto device = bus / address;
    if (multinode::is_there(device / "physfn")) continue;  // a virtual function stands for a part of another device
    const std::string kind = multinode::read_text(device / "class").value_or("").substr(0, 6),
                      vendor = multinode::read_text(device / "vendor").value_or("");
    const bool nvidia = vendor == "0x10de" && (kind == "0x0300" || kind == "0x0302"), infiniband = kind == "0x0207";
    // Ethernet, Omni-Path, and Mellanox's cards of before 2015 that are Ethernet and InfiniBand.
    const bool other =
        kind == "0x0200" || kind == "0x0208" || kind == "0x0c06" || (kind == "0x0280" && vendor == "0x15b3");
    if (!nvidia && !infiniband && !other) continue;
    std::error_code unbound;
    const std::string driver = std::filesystem::read_symlink(device / "driver", unbound).filename();
    ++(nvidia ? gpu : nic).drivers[driver.empty() ? "without a driver" : driver];
    if (nvidia && driver.empty())
      add(gpu.wrong, "GPU " + address + " has no driver: load nvidia (modprobe nvidia, dkms status, dmesg)");
    else if (nvidia && driver == "nouveau")
      add(gpu.wrong, "GPU " + address + " has the driver nouveau, which CUDA cannot use: install NVIDIA's driver");
    else if (driver.empty())
      add(nic.wrong,
          "network interface " + address + " (vendor " + vendor + ") has no driver: load it (lspci -k, dmesg)");
    else if (infiniband && driver == "mlx5_core" && !multinode::is_there(device / "infiniband"))
      add(nic.wrong, "InfiniBand device " + address + " has no RDMA driver: load mlx5_ib");
  }
  const auto bound = gpu.drivers.find("nvidia");
  if (gpus.devices.empty() && !gpus.broken && !std::getenv("CUDA_VISIBLE_DEVICES") && gpu.wrong.empty() &&
      bound != gpu.drivers.end())
    gpu.wrong = std::to_string(bound->second) + " GPUs on the PCI bus have a driver, and " + gpus.seen_by +
                " sees none: look at nvidia-smi, /dev/nvidia*, and the "
                "versions of driver and libcuda; if this job is to have no GPU, set CUDA_VISIBLE_DEVICES to -1";

  Findings all;
  for (const auto& [name, kind] : {std::pair{"pci_gpus", &gpu}, std::pair{"pci_nics", &nic}}) {
    std::vector<std::string> texts;
    for (const auto& [driver, count] : kind->drivers) texts.push_back(std::to_string(count) + " " + driver);
    all.push_back(listed(name, texts, "none in " + bus.string()));
    all.back().blame(kind->wrong);
  }
  return all;
}

}  // namespace

json line_of(const Finding& finding, const std::string& host, int rank) {
  return {{"what", finding.what},
          {"rank", rank},
          {"host", host},
          {"value", finding.value},
          {"unit", finding.unit},
          {"better", finding.better},
          {"ok", finding.ok ? json(*finding.ok) : json()},
          {"why", finding.ok == false ? host + ": " + finding.why : finding.why}};
}

void unbind() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  multinode::check_errno(sched_setaffinity(0, sizeof all, &all), "sched_setaffinity");
}

Ticks ticks() {
  tms own{};
  times(&own);
  std::istringstream words(multinode::read_text("/proc/stat").value_or("cpu").substr(3));  // "cpu  1 2 3 ..."
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft = 0, stolen = 0;
  words >> user >> nice >> system >> idle >> waiting >> interrupts >> soft >> stolen;
  const double busy = user + nice + system + stolen;
  return {static_cast<double>(own.tms_utime + own.tms_stime + own.tms_cutime + own.tms_cstime), busy,
          busy + idle + waiting};
}

double other_work_since(const Ticks& then) {
  const auto [own, busy, all] = ticks();
  return all <= then.all ? -1 : std::clamp((busy - then.busy - (own - then.own)) / (all - then.all), 0.0, 1.0);
}

std::filesystem::path temporary_folder() {
  const char* const given = std::getenv("TMPDIR");
  return given && *given ? given : "/tmp";
}

std::filesystem::path folder_of_examples() {
  auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  while (!std::filesystem::is_regular_file(folder / "01-environment/explore")) {  // in the source, it is a folder
    if (folder == folder.parent_path()) return {};
    folder = folder.parent_path();
  }
  return folder;
}

Findings look_at_limits(const std::filesystem::path& root, const std::filesystem::path& tmp) {
  const bool rdma = !multinode::rdma_ports(root / "sys").empty();
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

  all.push_back({"cpus", multinode::allowed_cpus().size()});
  const multinode::Limits cgroup = multinode::read_cgroup(root);
  if (cgroup.cpus) {
    all.push_back({"cgroup_cpus", *cgroup.cpus});
    if (*cgroup.cpus < 1) all.back().blame(fmt::format("the cgroup allows {:g} of a CPU: raise cpu.max", *cgroup.cpus));
  }
  if (cgroup.memory_bytes) all.push_back({"cgroup_memory", *cgroup.memory_bytes, "bytes"});
  all.push_back({"memory", static_cast<double>(multinode::usable_memory()) / 0x1p30, "GiB"});
  all.push_back(look_at_folder("shm", "/dev/shm", 0x1p25,
                               "MPI and NCCL pass data between the ranks of a node there: mount a larger tmpfs "
                               "(--shm-size=1g or --ipc=host of a container)",
                               20));
  all.push_back(look_at_folder("tmp", tmp, 0x1p26, "make room, or let TMPDIR name a folder that can be written", 5000));
  return all;
}

Findings look_at_devices(const std::filesystem::path& sysfs, const multinode::Gpus& gpus) {
  const auto ports = multinode::rdma_ports(sysfs);
  std::vector<std::string> rdma;
  for (const auto& port : ports)
    rdma.push_back(port.name() + " " + port.state.value_or("") + " " + port.rate.value_or(""));
  const auto interfaces = multinode::join(interfaces_in_use());
  Findings all{{"interfaces", interfaces.empty() ? "none" : interfaces, "", "equal", true, "up, with an address"},
               listed("rdma_ports", rdma, "no RDMA device in " + (sysfs / "class/infiniband").string())};
  if (!ports.empty() && std::ranges::none_of(ports, &multinode::RdmaPort::is_active))
    all.back().blame("no RDMA port is ACTIVE: look at the cable, the switch and, on InfiniBand, the subnet manager");
  std::ranges::move(look_at_pci(sysfs, gpus), std::back_inserter(all));
  std::vector<std::string> names;
  for (const auto& gpu : gpus.devices)
    names.push_back(gpu.name + (gpu.memory_bytes ? " " + gib(static_cast<double>(*gpu.memory_bytes)) : ""));
  all.push_back(listed("gpus", names, gpus.none_because));
  if (gpus.broken) all.back().blame(gpus.none_because);
  return all;
}

namespace {

struct Mount {
  std::string folder, kind, options;
};

// The file systems in `root`/proc/self/mounts, where "\\040" stands for a space in a name.
std::vector<Mount> mounts_in(const std::filesystem::path& root) {
  std::vector<Mount> mounts;
  std::istringstream lines(multinode::read_text(root / "proc/self/mounts").value_or(""));
  Mount mount;
  for (std::string line, device; std::getline(lines, line);) {
    if (!(std::istringstream(line) >> device >> mount.folder >> mount.kind >> mount.options)) continue;
    for (std::size_t at = 0; (at = mount.folder.find('\\', at)) != std::string::npos; ++at)
      mount.folder.replace(at, 4, 1,
                           static_cast<char>(std::strtol(mount.folder.substr(at + 1, 3).c_str(), nullptr, 8)));
    mounts.push_back(mount);
  }
  return mounts;
}

// What is wrong with each of these mounts: "/data does not answer; /home is stale (...)". Each is asked by a process of
// its own, because a file system whose server is gone may keep it in the kernel for ever.
std::string not_answering(const std::set<std::string>& folders, std::chrono::milliseconds timeout) {
  struct Asked {
    std::string folder;
    multinode::Descriptor answer;
    pid_t process;
  };
  std::vector<Asked> all;
  for (const auto& folder : folders) {
    auto [answer, question] = multinode::make_pipe();
    const pid_t process = fork();
    if (process == 0) {  // holds nothing open that somebody waits for
      dup2(question.get(), 0);
      close_range(1, ~0U, 0);
      struct statvfs space;
      const int error = statvfs(folder.c_str(), &space) == 0 ? 0 : errno;
      _exit(write(0, &error, sizeof error) == sizeof error ? 0 : 1);
    }
    multinode::check_errno(process, "fork");
    all.push_back({folder, std::move(answer), process});
  }
  std::string wrong;
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (auto& [folder, answer, process] : all) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd ready{answer.get(), POLLIN, 0};
    int error = 0;
    if (poll(&ready, 1, static_cast<int>(std::max(left, 0ms).count())) <= 0)
      kill(process, SIGKILL), add(wrong, folder + " does not answer");
    else if (read(answer.get(), &error, sizeof error) == sizeof error && error != 0 && error != EACCES)
      add(wrong, folder + " is stale (" + std::strerror(error) + ")");  // one that refuses us has answered
    waitpid(process, nullptr, WNOHANG);
  }
  return wrong;
}

}  // namespace

Finding look_at_mounts(const std::filesystem::path& root, std::chrono::milliseconds timeout) {
  static const std::set<std::string> servers{"nfs",  "nfs4", "lustre", "gpfs", "beegfs",   "ceph",  "cifs",
                                             "smb3", "9p",   "afs",    "weka", "virtiofs", "panfs", "wekafs"},
      disks{"ext3", "ext4", "xfs", "btrfs", "zfs"};
  std::set<std::string> all, asked;
  for (const auto& [folder, kind, options] : mounts_in(root)) {
    // What a user mounted (FUSE) is no fault of the node.
    const bool by_root = kind.starts_with("fuse") && options.find("user_id=0,") != options.npos;
    if (disks.contains(kind) || servers.contains(kind)) all.insert(folder);
    if (servers.contains(kind) || by_root) asked.insert(folder);
  }
  auto wrong = not_answering(asked, timeout);
  if (all.empty() && wrong.empty()) return absent("mounts", "no disk and no file server is mounted");
  if (!wrong.empty()) wrong += ": look at the file server and its network, and mount it again";
  return {"mounts", multinode::join(all), "", "equal", wrong.empty(), wrong};
}

Finding look_at_name_service(std::chrono::milliseconds timeout) {
  const auto name = multinode::host_name();
  std::packaged_task<void()> ask([name] {
    addrinfo* found = nullptr;
    if (getaddrinfo(name.c_str(), nullptr, nullptr, &found) == 0) freeaddrinfo(found);
  });
  const auto answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  Finding finding{"name_service", "answers"};
  if (answer.wait_for(timeout) != std::future_status::ready)
    finding.blame("to look up this node's own name " + name + " takes more than " +
                  fmt::format("{:g} s", std::chrono::duration<double>(timeout).count()) +
                  ", as every process that starts does: write it into /etc/hosts, and look at the name servers of "
                  "/etc/resolv.conf");
  return finding;
}

namespace {

// What the node has, by the names of what is wanted. Of several devices the least, so that one that is bad shows.
json facts(const std::filesystem::path& root) {
  const auto gpus = multinode::gpus_of_driver(root).devices;
  json has{{"gpus", gpus.size()},
           {"gpu", json::array()},
           {"rdma_ports", 0},
           {"cpus", multinode::usable_cpus()},
           {"memory_gib", static_cast<double>(multinode::usable_memory()) / 0x1p30}};
  for (const auto& gpu : gpus) has["gpu"].push_back(gpu.name);
  if (const auto version = multinode::nvidia_driver(root)) has["driver"] = *version;
  for (const auto& port : multinode::rdma_ports(root / "sys")) {
    if (!port.is_active()) continue;
    has["rdma_ports"] = has["rdma_ports"].get<int>() + 1;
    const double rate = std::atof(port.rate.value_or("0").c_str());
    has["rdma_gbit_per_s"] = std::min(rate, has.value("rdma_gbit_per_s", rate));
  }
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

Finding look_at_inventory(const json& wanted, const std::filesystem::path& root, std::chrono::milliseconds timeout) {
  std::string wrong;
  const json has = facts(root);
  std::set<std::string> mounted;
  for (const auto& mount : mounts_in(root)) mounted.insert(mount.folder);
  for (const auto& [name, value] : wanted.items()) {
    const json found = has.value(name, json());
    if (name == "mounts") {
      std::set<std::string> asked;
      for (const std::string folder : value)
        if (mounted.contains(folder))
          asked.insert(folder);
        else
          add(wrong, folder + " is not mounted");
      if (const auto why = not_answering(asked, timeout); !why.empty()) add(wrong, why);
    } else if (value.is_string() ? !matches(found, value) : found < value) {
      add(wrong, fmt::format("{} is {}, and {}{} is wanted", name, found.is_null() ? "unknown" : found.dump(),
                             value.is_number() ? "at least " : "", value.dump()));
    }
  }
  if (!wrong.empty()) wrong += ": the site file lists this as this node's; repair the node or correct the file";
  return {"inventory", wanted.size(), "members", "equal", wrong.empty(), wrong};
}

}  // namespace node_check
