#include "diagnosis.hpp"

#include "commands.hpp"
#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

namespace rdma {

using multinode::is_there;
using multinode::join;
using multinode::names_in;
using multinode::printable;
using multinode::read_number;
using multinode::read_text;
namespace fs = std::filesystem;
namespace po = boost::program_options;

std::string text_of(Severity severity) {
  static constexpr const char* names[] = {"fine", "note", "warning", "BAD", "not seen"};
  return names[static_cast<std::size_t>(severity)];
}

namespace {

using multinode::Trouble, multinode::trouble_counts;

// The words after "Name:" or "Name" at the beginning of a line.
std::vector<std::string> line_of(const fs::path& file, const std::string& name) {
  std::istringstream lines(read_text(file).value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name)) {
      std::istringstream words(line.substr(name.size()));
      return {std::istream_iterator<std::string>(words), {}};
    }
  return {};
}

class Diagnoses {
 public:
  Diagnoses(const System& system, const Places& places) : system_(system), places_(places) {}

  std::vector<Diagnosis> all() {
    if (system_.devices.empty()) {
      other_namespace();
      return std::move(all_);
    }
    ports();
    memlock();
    for (const Device& device : system_.devices) uverbs(device);
    network_namespace();
    gpu_direct();
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (!port.is_active()) continue;
        mtu(device, port);
        counters(device, port);
      }
    return std::move(all_);
  }

 private:
  void add(Diagnosis diagnosis) { all_.push_back(std::move(diagnosis)); }

  static std::string name_of(const Device& device, const Port& port) {
    return device.name + ":" + std::to_string(port.number);
  }
  fs::path folder_of(const Device& device, const Port& port) const {
    return places_.sysfs / "class/infiniband" / device.name / "ports" / std::to_string(port.number);
  }
  std::string variable(const char* name) const {
    const auto found = places_.variables.find(name);
    return found == places_.variables.end() ? "" : found->second;
  }

  // /dev shows the host's devices, sysfs only those of this network namespace.
  void other_namespace() {
    for (const std::string& name : names_in(places_.dev / "infiniband"))
      if (name.starts_with("uverbs"))
        return add({Severity::bad, "RDMA devices", "none here, but " + (places_.dev / "infiniband" / name).string(),
                    "a device of this network namespace",
                    "on the host: rdma system show; rdma dev set DEVICE netns NAME (exclusive mode), or run the "
                    "container with the host's network"});
  }

  void ports() {
    std::size_t active = 0;
    std::vector<std::string> down, waiting;
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (port.is_active())
          ++active;
        else if (port.state == "INIT" || port.state == "ARMED")
          waiting.push_back(name_of(device, port) + " " + port.state);
        else
          down.push_back(name_of(device, port) + " " + (port.state.empty() ? "unreadable" : port.state));
      }
    if (!waiting.empty())
      add({Severity::bad, "link without configuration", join(waiting), "ACTIVE",
           "InfiniBand: no subnet manager has configured it: sminfo; RoCE: ip link show"});
    if (down.empty() && waiting.empty()) return add({Severity::fine, "ports", "all active"});
    if (down.empty()) return;
    const Severity severity = !active ? Severity::bad : down.size() < active ? Severity::warning : Severity::note;
    add({severity, "ports", join(down),
         severity == Severity::note ? ""
         : active                   ? "ACTIVE"
                                    : "at least one ACTIVE",
         "ibstat; ip link show; a cable or the switch's port"});
  }

  void memlock() {
    const auto words = line_of(places_.proc / "self/limits", "Max locked memory");
    if (words.size() < 2)
      return add({Severity::unknown, "memlock", "no 'Max locked memory' in " + (places_.proc / "self/limits").string(),
                  "unlimited", "ulimit -l"});
    if (words[0] == "unlimited") return add({Severity::fine, "memlock", "unlimited"});
    const std::string bytes = printable(words[0]) + " bytes";
    // CAP_IPC_LOCK (bit 14) lifts the limit.
    const auto capabilities = line_of(places_.proc / "self/status", "CapEff:");
    if (!capabilities.empty() && std::strtoull(capabilities[0].c_str(), nullptr, 16) >> 14 & 1)
      return add({Severity::note, "memlock", bytes + "; CAP_IPC_LOCK lifts the limit here",
                  "unlimited, for jobs without it", "/etc/security/limits.d/rdma.conf: '* - memlock unlimited'"});
    add({std::strtod(words[0].c_str(), nullptr) < 1 << 30 ? Severity::bad : Severity::warning, "memlock", bytes,
         "unlimited",
         "ulimit -l unlimited; permanently: /etc/security/limits.d/rdma.conf '* - memlock unlimited'\n"
         "Slurm: PropagateResourceLimitsExcept=MEMLOCK and LimitMEMLOCK=infinity of slurmd; docker run --ulimit "
         "memlock=-1"});
  }

  void uverbs(const Device& device) {
    const fs::path verbs = places_.sysfs / "class/infiniband_verbs";
    for (const std::string& name : names_in(verbs)) {
      if (read_text(verbs / name / "ibdev").value_or("") != device.name) continue;
      const fs::path node = places_.dev / "infiniband" / name;
      const std::string what = device.name + " " + node.string();
      const std::string widen =
          "chmod 666 " + node.string() + "; permanently: udev rule KERNEL==\"uverbs*\", MODE=\"0666\"";
      struct stat facts {};
      const multinode::Descriptor fd(::open(node.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
      const int error = fd ? 0 : errno;
      if (fd && ::fstat(fd.get(), &facts) < 0) facts.st_mode = 0666;
      const std::string mode = fmt::format("mode {:04o}", facts.st_mode & 07777);
      if (error == ENOENT)
        return add({device.missing_node.empty() ? Severity::bad : Severity::note, what, "not there", "a device node",
                    "container: --device=/dev/infiniband/" + name +
                        " (Kubernetes: an RDMA device plugin); host: modprobe ib_uverbs"});
      if (error)  // EPERM is not the file's mode
        return add({Severity::bad, what, std::strerror(error), "read and write",
                    error == EPERM
                        ? "the container's device cgroup forbids it: docker run --device=/dev/infiniband/" + name
                        : widen});
      if ((facts.st_mode & 0006) == 0006) return add({Severity::fine, what, "opens, " + mode});
      return add({Severity::warning, what, mode + ": not for everyone", "0666", widen});
    }
    add({device.missing_node.empty() ? Severity::bad : Severity::note, device.name + " uverbs",
         "no entry in " + verbs.string(), "uverbsN", "modprobe ib_uverbs"});
  }

  void network_namespace() {
    const auto mode = read_text(places_.sysfs / "module/ib_core/parameters/netns_mode");
    const std::string shown = !mode ? "mode unknown" : *mode == "N" ? "exclusive mode" : "shared mode";
    bool foreign = false;
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (!port.is_active() || port.link_layer != LinkLayer::ethernet) continue;
        if (device.is_iwarp()) {
          add({Severity::bad, name_of(device, port) + " protocol", "iWARP, which NCCL cannot use", "RoCE",
               "modprobe irdma roce_ena=1 (Intel's driver), or: devlink dev param set pci/" + device.pci +
                   " name enable_roce value true cmode driverinit; devlink dev reload pci/" + device.pci});
          continue;
        }
        const bool is_here = std::any_of(port.gids.begin(), port.gids.end(), [&](const Gid& gid) {
          return !gid.net_device.empty() && system_.find_net_device(gid.net_device) != nullptr;
        });
        if (is_here) continue;
        // If no GID names its net device, the device's own one may still be in this namespace.
        const bool named = std::any_of(port.gids.begin(), port.gids.end(), [](const Gid& gid) {
          return !gid.net_device.empty() || !gid.unreadable.empty();
        });
        if (!named && !port.gids.empty()) continue;
        foreign = true;
        add({Severity::bad, name_of(device, port) + " namespace",
             port.gids.empty() ? "no GID; " + shown : "no GID of a net device that is here; " + shown,
             "a GID of this network namespace",
             "run the pod with the host's network, give it an interface on the RDMA device (macvlan, SR-IOV), or move "
             "the device: rdma dev set " +
                 device.name + " netns NAME (mode: rdma system set netns exclusive)\n" +
                 "no address on the interface: ip addr show"});
      }
    if (!foreign) add({Severity::fine, "network namespace", shown});
  }

  void gpu_direct() {
    const std::string what = "GPUDirect RDMA";
    if (!system_.has_gpu && !system_.gpus.empty()) {
      const bool is_peer = is_there(places_.sysfs / "kernel/mm/memory_peers/amdkfd");
      return add({is_peer ? Severity::fine : Severity::unknown, what,
                  is_peer ? "amdkfd is a memory peer" : "GPUs not of NVIDIA, without a memory peer: dma-buf decides",
                  "dma-buf", "zgrep -E 'DMABUF_MOVE_NOTIFY|PCI_P2PDMA' /proc/config.gz"});
    }
    if (!system_.has_gpu) return add({Severity::fine, what, "no GPU here: nothing to look at"});
    if (is_gb10()) return add({Severity::fine, what, "a GB10 (DGX Spark) has none: GPU and CPU share their memory"});
    for (const char* module : {"nvidia_peermem", "nv_peer_mem"})
      if (is_there(places_.sysfs / "module" / module))
        return add({Severity::fine, what, std::string(module) + " is loaded"});
    const auto driver = read_text(places_.proc / "driver/nvidia/version");
    const std::string kernel =
        printable(read_text(places_.proc / "sys/kernel/osrelease").value_or("of unknown version"));
    int major = 0, minor = 0;
    if (std::sscanf(kernel.c_str(), "%d.%d", &major, &minor) != 2) major = minor = 0;
    std::string why_no_dma_buf;
    if (!driver)
      why_no_dma_buf = "no " + (places_.proc / "driver/nvidia/version").string();
    else if (driver->find("Open Kernel Module") == std::string::npos)
      why_no_dma_buf = "not NVIDIA's open kernel module";
    else if (major < 5 || (major == 5 && minor < 12))
      why_no_dma_buf = "Linux " + kernel + " is before 5.12";
    else if (variable("NCCL_DMABUF_ENABLE") == "0")
      why_no_dma_buf = "NCCL_DMABUF_ENABLE=0";
    else
      return add({Severity::fine, what, "dma-buf: NVIDIA's open kernel module, Linux " + kernel});
    add({!driver && is_there(places_.sysfs / "module/nvidia") ? Severity::unknown : Severity::warning, what,
         "nvidia_peermem is not loaded; no dma-buf: " + why_no_dma_buf,
         "nvidia_peermem, or the open kernel module with Linux 5.12",
         "modprobe nvidia_peermem, if the GPU supports GPUDirect RDMA (GeForce and Jetson do not)"});
  }

  // By the board of its cards, the machine's name, or the driver's name of its GPU.
  bool is_gb10() const {
    const fs::path gpus = places_.proc / "driver/nvidia/gpus";
    const std::string machine = read_text(places_.sysfs / "class/dmi/id/product_name").value_or("");
    return std::ranges::find(system_.devices, "NVD0000000087", &Device::board) != system_.devices.end() ||
           machine.find("DGX_Spark") != machine.npos || machine.find("GB10") != machine.npos ||
           std::ranges::any_of(names_in(gpus), [&](const std::string& name) {
             return read_text(gpus / name / "information").value_or("").find("GB10") != std::string::npos;
           });
  }

  void mtu(const Device& device, const Port& port) {
    const std::string what = name_of(device, port) + " MTU";
    const std::optional<int> mtu = rdma_mtu(system_, device, port);
    if (!mtu)
      return add({Severity::unknown, what, "sysfs does not show it", "the port's maximum", "ibv_devinfo | grep mtu"});
    if (*mtu == 4096) return add({Severity::fine, what, "4096"});
    add({Severity::warning, what, std::to_string(*mtu), "4096",
         "ip link set " + *net_devices_of(device, port).begin() +
             " mtu 9000, on all nodes and switches: nodes that differ hang"});
  }

  void counters(const Device& device, const Port& port) {
    const bool ethernet = port.link_layer == LinkLayer::ethernet;
    const bool is_nvidia = device.vendor.empty() || device.vendor == "0x15b3";
    const fs::path folder = folder_of(device, port);
    const auto judge = [&](const std::string& what, const std::vector<multinode::TroubleCount>& counts,
                           Severity severity, const std::string& fix) {
      const std::string name = name_of(device, port) + " " + what;
      std::vector<std::string> grown;
      for (const multinode::TroubleCount& count : counts)
        if (count.value) grown.push_back(count.name + " " + std::to_string(count.value));
      if (!grown.empty())
        add({severity, name, join(grown), "0, or no growth during a run", fix});
      else if (counts.empty() && severity == Severity::warning)
        add({Severity::unknown, name, "no counter", "0", "rdma statistic, ethtool -S"});
      else if (severity == Severity::warning)
        add({Severity::fine, name, "none"});
    };
    judge("losses", trouble_counts(folder, {Trouble::loss}), Severity::warning,
          !ethernet ? "ibqueryerrors: a cable or a switch"
          : is_nvidia
              ? "PFC or ECN on the path: mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0, and the same on the switches"
              : "PFC or ECN on the path: dcb pfc set dev INTERFACE prio-pfc 3:on, and the same on the switches");
    judge("congestion", trouble_counts(folder, {Trouble::congestion}), Severity::note,
          "ECN marks packets, or the port waits for its turn to send");
    std::vector<multinode::TroubleCount> errors = trouble_counts(folder, {Trouble::link, Trouble::error});
    for (const std::string& name : net_devices_of(device, port))
      for (const char* file : {"rx_crc_errors", "rx_frame_errors", "tx_carrier_errors"})
        if (const auto count = read_number<std::uint64_t>(places_.sysfs / "class/net" / name / "statistics" / file))
          errors.push_back({name + " " + file, *count});
    judge("errors", errors, Severity::warning,
          "a cable: " + (is_nvidia ? "mlxlink -d " + device.name + " -c, " : "") +
              (ethernet ? "ethtool -m" : "ibqueryerrors"));
  }

  const System& system_;
  const Places& places_;
  std::vector<Diagnosis> all_;
};

}  // namespace

std::vector<Diagnosis> diagnose(const System& system, const Places& places) { return Diagnoses(system, places).all(); }

int run_check(int argc, const char* const* argv) {
  std::string sysfs = "/sys";
  po::options_description known("rdma_tune check [options]: what is wrong here, and how to fix it");
  known.add(sysfs_option(sysfs));
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;

  System system = read_system(sysfs);
  const Site site = read_site(sysfs);
  if (!site.file.empty()) {
    std::cout << site.line() << '\n';
    std::set<std::string> left_out;
    for (const PortChoice& port : choose(system, {.site = site}).ports)
      if (port.by_site) left_out.insert(port.name());
    for (Device& device : system.devices)
      std::erase_if(device.ports, [&](const Port& port) {
        return left_out.contains(device.name + " port " + std::to_string(port.number));
      });
    std::erase_if(system.devices, [](const Device& device) { return device.ports.empty(); });
  }
  fs::path machine = machine_of(fs::absolute(sysfs));
  if (machine.empty()) machine = "/";
  const Places places{sysfs, machine / "dev", machine / "proc", nccl_environment(sysfs)};
  const std::vector<Diagnosis> all = diagnose(system, places);

  std::map<Severity, int> count;
  for (const Diagnosis& one : all) {
    ++count[one.severity];
    std::cout << text_of(one.severity) << ": " << one.what << ": " << one.seen;
    if (!one.expected.empty() && one.severity != Severity::fine) std::cout << "; expected: " << one.expected;
    std::cout << '\n';
    std::istringstream fix(one.fix);
    for (std::string line; std::getline(fix, line);) std::cout << "    " << line << '\n';
  }
  const int bad = count[Severity::bad];
  for (const std::string& problem : system.problems) std::cout << "problem: " << problem << '\n';
  if (all.empty() && !system.is_incomplete)
    std::cout << "no RDMA device in " << sysfs << "/class/infiniband: nothing to check\n";
  else
    std::cout << bad << " bad, " << count[Severity::warning] << " warnings, " << count[Severity::unknown]
              << " not seen\n";
  std::cout << std::flush;
  if (bad) return multinode::exit_wrong;
  return all.empty() || system.is_incomplete ? multinode::exit_untestable : multinode::exit_right;
}

}  // namespace rdma
