#include "check.hpp"

#include "choice.hpp"
#include "nccl_gid.hpp"
#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
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

// The counters that are not zero: "out_of_sequence 5000". `seen`: at least one counter exists.
struct Tally {
  std::vector<std::string> nonzero;
  double sum = 0;
  bool seen = false;

  void add(const std::string& name, std::uint64_t count) {
    seen = true;
    sum += static_cast<double>(count);
    if (count) nonzero.push_back(name + " " + std::to_string(count));
  }
  void add(const std::vector<multinode::TroubleCount>& counts) {
    for (const multinode::TroubleCount& count : counts) add(count.name, count.value);
  }
};

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

// ACS control of a bridge; nullopt: its extended configuration space cannot be read. Only root can.
std::optional<unsigned> acs_control(const fs::path& config) {
  std::error_code error;
  std::ifstream in(config, std::ios::binary);
  std::string bytes(4096, '\0');
  if (!fs::is_regular_file(config, error) || (in.read(bytes.data(), 4096), in.bad())) return {};
  bytes.resize(static_cast<std::size_t>(in.gcount()));
  // sysfs shows 64 bytes to users other than root. A conventional bridge has 256 bytes and no ACS.
  if (bytes.size() == 256) return 0;
  if (bytes.size() < 4096) return {};
  const auto word = [&](std::size_t at) {
    const auto byte = [&](std::size_t i) -> unsigned { return static_cast<unsigned char>(bytes[i]); };
    return byte(at) | byte(at + 1) << 8;
  };
  std::size_t capability = 0x100;
  for (int hops = 0; hops < 960 && capability >= 0x100 && capability + 8 <= bytes.size(); ++hops) {
    if (word(capability) == 0x000d) return word(capability + 6);
    capability = word(capability + 2) >> 4 & 0xffc;
  }
  return 0;
}

class Checks {
 public:
  Checks(const System& system, const Places& places) : system_(system), places_(places), choice_(choose(system, {})) {
    for (const PortChoice& port : choice_.ports)
      if (port.usable && (used_.empty() || used_.back().name != port.device->name))
        used_.push_back({port.device->name, port.device->pci});
  }

  std::vector<CheckResult> all() {
    if (system_.devices.empty()) {
      other_namespace();
      return std::move(findings_);
    }
    ports();
    memlock();
    for (const Device& device : system_.devices) uverbs(device);
    network_namespace();
    gpu_direct();
    access_control();
    rails();
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (!port.is_active()) continue;
        mtu(device, port);
        losses(device, port);
        errors(device, port);
      }
    return std::move(findings_);
  }

  // NCCL's other settings. `fix` holds the reason in place of a command.
  std::vector<CheckResult> advice() {
    if (used_.empty()) return {};
    const int farthest = rails();
    if (!system_.gpus.empty()) gpu_direct();
    bool roce = false, bonded = false;
    for (const PortChoice& port : choice_.ports) {
      if (!port.usable) continue;
      roce |= port.port->link_layer == LinkLayer::ethernet;
      for (const std::string& name : net_devices_of(*port.device, *port.port))
        bonded |= system_.find_net_device(name) && system_.find_net_device(name)->is_bond;
    }
    const auto advise = [&](const char* name, const std::string& wanted, const std::string& reason) {
      const std::string set = printable(variable(name));
      add({set == wanted ? Severity::fine : Severity::note, name, set.empty() ? "not set" : set,
           wanted.empty() ? "not set" : wanted, reason});
    };
    if (!system_.gpus.empty())
      advise("NCCL_NET_GDR_LEVEL", farthest == 1 ? "PHB" : "",
             farthest == 0   ? "each GPU has a device below its PCI switch: NCCL's default (PXB) uses GPUDirect RDMA"
             : farthest == 1 ? "a GPU and its nearest device share only the CPU: by default NCCL copies their data "
                               "through host memory, with PHB it uses GPUDirect RDMA. Measure both"
                             : "the nearest device of a GPU is on another CPU: NCCL copies through host memory there");
    advise("NCCL_CROSS_NIC", "",
           used_.size() < 2 ? "one RDMA device: there is no other to cross to"
                            : "the default, 2, keeps a ring on one rail unless crossing is faster. NCCL cannot see the "
                              "switches: set 0 if device k reaches only device k of the other nodes, 1 if all devices "
                              "are on one switch");
    advise("NCCL_IB_QPS_PER_CONNECTION", bonded ? "2" : "",
           bonded ? "a queue pair stays on one link of a bond: the other link idles if a connection has only one"
           : roce ? "the default is 1. Switches hash each queue pair's UDP port to a path: try 2 or 4 if there are "
                    "several paths and one is overloaded"
                  : "the default is 1: the subnet manager's routes and adaptive routing spread the connections");
    advise("NCCL_IB_ADAPTIVE_ROUTING", "",
           roce ? "the default is 0 on RoCE. Set 1 only if the switches route adaptively and the cards accept packets "
                  "in any order"
                : "the default is 1 on InfiniBand");
    plugin();
    return std::move(findings_);
  }

 private:
  void add(CheckResult finding) { findings_.push_back(std::move(finding)); }

  static std::string name_of(const Device& device, const Port& port) {
    return device.name + ":" + std::to_string(port.number);
  }
  fs::path folder_of(const Device& device, const Port& port) const {
    return places_.sysfs / "class/infiniband" / device.name / "ports" / std::to_string(port.number);
  }
  // The net devices that a port's GIDs name, or the device's own.
  static std::set<std::string> net_devices_of(const Device& device, const Port& port) {
    std::set<std::string> names;
    for (const Gid& gid : port.gids)
      if (!gid.net_device.empty()) names.insert(gid.net_device);
    if (names.empty()) names.insert(device.net_devices.begin(), device.net_devices.end());
    return names;
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
    bool any = false;
    std::vector<std::string> down;
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (port.is_active())
          any = true;
        else
          down.push_back(name_of(device, port) + " " + (port.state.empty() ? "unreadable" : port.state));
      }
    if (down.empty()) return add({Severity::fine, "ports", "all active"});
    add({any ? Severity::note : Severity::bad, "ports", join(down), any ? "" : "at least one ACTIVE",
         "ibstat; ip link show; a cable, the switch's port, or (InfiniBand) no subnet manager: sminfo"});
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
        return add({Severity::bad, what, "not there", "a device node",
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
    add({Severity::bad, device.name + " uverbs", "no entry in " + verbs.string(), "uverbsN", "modprobe ib_uverbs"});
  }

  void network_namespace() {
    const auto mode = read_text(places_.sysfs / "module/ib_core/parameters/netns_mode");
    const std::string shown = !mode ? "mode unknown" : *mode == "N" ? "exclusive mode" : "shared mode";
    bool foreign = false;
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (!port.is_active() || port.link_layer != LinkLayer::ethernet) continue;
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
    if (foreign) return;
    std::error_code error;
    const fs::path here = fs::read_symlink(places_.proc / "self/ns/net", error);
    const fs::path of_process_1 = error ? fs::path() : fs::read_symlink(places_.proc / "1/ns/net", error);
    if (error)
      add({Severity::fine, "network namespace", shown + "; process 1's is not readable"});
    else
      add({Severity::fine, "network namespace",
           shown + (here == of_process_1 ? "; the same as process 1's" : "; not process 1's")});
  }

  void gpu_direct() {
    const std::string what = "GPUDirect RDMA";
    if (system_.gpus.empty()) return add({Severity::fine, what, "no GPU here: nothing to look at"});
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
         "nvidia_peermem, or the open kernel module with Linux 5.12", "modprobe nvidia_peermem"});
  }

  // The PCI bridges above GPUs and RDMA devices, which may send what is between them through the CPU.
  void access_control() {
    if (system_.gpus.empty()) return;
    std::set<std::string> bridges, hidden, redirecting;
    const auto add_bridges = [&](const std::string& pci) {
      std::vector<std::string> path = pci_path(system_, pci);
      for (std::size_t i = 1; i + 1 < path.size(); ++i) bridges.insert(path[i]);
    };
    for (const Device& device : system_.devices) add_bridges(device.pci);
    for (const Gpu& gpu : system_.gpus) add_bridges(gpu.pci);
    for (const std::string& bridge : bridges) {
      const auto control = acs_control(places_.sysfs / "bus/pci/devices" / bridge / "config");
      if (!control)
        hidden.insert(bridge);
      else if (*control & 0x2c)  // P2P request redirect, completion redirect, egress control
        redirecting.insert(bridge);
    }
    const std::string what = "PCIe ACS", expected = "off between GPU and HCA";
    if (!redirecting.empty())
      add({Severity::warning, what, "redirects at " + join(redirecting), expected,
           join(redirecting, "\n", [](const std::string& bridge) {
             return "setpci -s " + bridge + " ECAP_ACS+6.w=0000";
           }) + "\nafter each boot, or in the BIOS; not where devices are passed through to virtual machines"});
    if (!hidden.empty())
      add({Severity::unknown, what, "configuration space of " + join(hidden) + " is not readable", expected,
           "as root: rdma_tune check, or lspci -vvv | grep ACSCtl"});
    if (redirecting.empty() && hidden.empty())
      add({Severity::fine, what, std::to_string(bridges.size()) + " bridges, none redirects"});
  }

  void mtu(const Device& device, const Port& port) {
    const std::string what = name_of(device, port) + " MTU";
    const bool ethernet = port.link_layer == LinkLayer::ethernet;
    const auto names = net_devices_of(device, port);
    const std::string fix = ethernet ? "ip link set " + (names.empty() ? "INTERFACE" : *names.begin()) +
                                           " mtu 9000, on all nodes and switches: nodes that differ hang"
                                     : "the subnet manager's partitions.conf: mtu=5";
    if (port.active_mtu && port.max_mtu) {
      const std::string seen = std::to_string(*port.active_mtu) + " of " + std::to_string(*port.max_mtu);
      if (*port.active_mtu >= *port.max_mtu) return add({Severity::fine, what, seen});
      return add({Severity::warning, what, seen, std::to_string(*port.max_mtu), fix});
    }
    const NetDevice* net = nullptr;
    for (const std::string& name : names)
      if (!net) net = system_.find_net_device(name);
    if (!ethernet || !net || net->mtu <= 0)
      return add({Severity::unknown, what, "sysfs does not show it", "the port's maximum", "ibv_devinfo | grep mtu"});
    // The kernel takes the largest RDMA MTU that fits into the net device's MTU less 96 bytes of headers.
    int active = 256;
    while (active < 4096 && active * 2 + 96 <= net->mtu) active *= 2;
    const std::string seen = std::to_string(active) + ", by " + net->name + "'s " + std::to_string(net->mtu);
    if (active == 4096) return add({Severity::fine, what, seen});
    add({Severity::warning, what, seen, "4096", fix});
  }

  void losses(const Device& device, const Port& port) {
    const fs::path folder = folder_of(device, port);
    const std::string what = name_of(device, port) + " losses";
    Tally lost, congested;
    lost.add(trouble_counts(folder, {Trouble::loss}));
    congested.add(trouble_counts(folder, {Trouble::congestion}));
    if (!lost.seen) {
      add({Severity::unknown, what, "no counter of losses", "0",
           "rdma statistic show link " + device.name + "/" + std::to_string(port.number)});
    } else if (lost.nonzero.empty()) {
      add({Severity::fine, what, "none out of sequence, none sent again"});
    } else {
      std::uint64_t packets = 0;
      for (const char* file : {"counters/port_rcv_packets", "hw_counters/rcvd_pkts", "hw_counters/rx_pkts"})
        packets = std::max(packets, read_number<std::uint64_t>(folder / file).value_or(0));
      const double share = lost.sum / static_cast<double>(packets);
      add({packets && share < 1e-6 ? Severity::note : Severity::warning, what,
           join(lost.nonzero) + (packets ? fmt::format("; {:.2g} of the packets received", share) : ""),
           "0, or no growth during a run",
           port.link_layer == LinkLayer::ethernet
               ? "PFC or ECN on the path: mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0, and the same on the switches"
               : "ibqueryerrors: a cable or a switch"});
    }
    if (!congested.nonzero.empty())
      add({Severity::note, name_of(device, port) + " congestion", join(congested.nonzero),
           "no steep growth during a run", "ECN marks packets, or the port waits for its turn to send"});
  }

  void errors(const Device& device, const Port& port) {
    const std::string what = name_of(device, port) + " errors";
    Tally found;
    found.add(trouble_counts(folder_of(device, port), {Trouble::link, Trouble::error}));
    for (const std::string& name : net_devices_of(device, port))
      for (const char* file : {"rx_crc_errors", "rx_frame_errors", "tx_carrier_errors"})
        if (const auto count = read_number<std::uint64_t>(places_.sysfs / "class/net" / name / "statistics" / file))
          found.add(name + " " + file, *count);
    if (!found.seen) return add({Severity::unknown, what, "no counter of errors", "0", "perfquery, ethtool -S"});
    if (found.nonzero.empty()) return add({Severity::fine, what, "none"});
    add({Severity::warning, what, join(found.nonzero), "0, or no growth during a run",
         port.link_layer == LinkLayer::infiniband ? "ibqueryerrors, mlxlink -d " + device.name + " -c: a cable"
                                                  : "mlxlink -d " + device.name + " -c, ethtool -m: a cable"});
  }

  // GPUs and the devices next to them. Returns the largest distance of a GPU to its nearest device.
  int rails() {
    std::vector<Candidate> gpus;
    for (const Gpu& gpu : system_.gpus) gpus.push_back({"GPU " + gpu.pci, gpu.pci});
    if (gpus.empty() || used_.empty()) return 0;
    std::vector<std::string> pairs, odd;
    const auto look = [&](const std::vector<Candidate>& from, const std::vector<Candidate>& to, const char* what) {
      std::vector<int> distances;
      for (const Candidate& place : from) distances.push_back(nearest(system_, place.pci, to).distance);
      std::vector<int> sorted = distances;
      std::ranges::sort(sorted);
      const int usual = sorted[(sorted.size() - 1) / 2];
      for (std::size_t i = 0; i < from.size() && std::min(from.size(), to.size()) > 1; ++i)
        if (distances[i] > usual && usual < 2 && distances[i] < 3)
          odd.push_back(from[i].name + " shares no " + (usual ? "NUMA node" : "PCI switch") + " with a" + what +
                        ", unlike the others: its traffic takes a longer path");
      return sorted.back();
    };
    for (const Candidate& gpu : gpus) {
      const Nearest near = nearest(system_, gpu.pci, used_);
      constexpr const char* how[] = {"", " (NUMA node)", " (another NUMA node)", "unknown"};
      pairs.push_back(gpu.name + " - " + join(near.names, "/") + how[near.distance]);
    }
    const int farthest = look(gpus, used_, "n RDMA device");
    look(used_, gpus, " GPU");
    add({odd.empty() ? Severity::fine : Severity::warning, "rails", join(pairs), "each GPU next to a device of its own",
         odd.empty() ? "NCCL sends through the nearest device; rail k is device k of every node" : join(odd, "\n")});
    return farthest;
  }

  // The library that NCCL loads in place of its own network code, where dlopen would find it.
  void plugin() {
    const std::string set = variable("NCCL_NET_PLUGIN"), what = "network plugin";
    const std::string no_plugin = "NCCL's own network code is used, for which these settings are";
    if (set == "none") return add({Severity::fine, what, "none, by NCCL_NET_PLUGIN", "", no_plugin});
    std::vector<std::string> names{"libnccl-net.so"}, folders;
    if (!set.empty()) names = {set, "libnccl-net-" + set + ".so"};
    const auto add_words = [&](const std::string& text, char between, const fs::path& root) {
      std::istringstream words(text);
      for (std::string word; std::getline(words, word, between);)
        if (word.starts_with('/')) folders.push_back(root.string() + word);
    };
    add_words(variable("LD_LIBRARY_PATH"), ':', "");
    if (const fs::path root = machine_of(places_.sysfs); !root.empty()) {
      const std::string prefix = root == "/" ? "" : root.string();
      for (const std::string& file : names_in(root / "etc/ld.so.conf.d"))
        add_words(read_text(root / "etc/ld.so.conf.d" / file).value_or(""), '\n', prefix);
      add_words("/lib64:/usr/lib64:/lib:/usr/lib", ':', prefix);
    }
    for (const std::string& name : names) {
      if (name.find('/') != name.npos) folders = {""};
      for (const std::string& folder : folders)
        if (const fs::path file = fs::path(folder) / name; is_there(file))
          return add({Severity::note, what, shown_path(file), "",
                      "NCCL loads it in place of its own network code, and it need not heed NCCL_IB_*; NCCL_DEBUG=INFO "
                      "names the network that is used, NCCL_NET_PLUGIN=none leaves it out"});
    }
    if (set.empty()) return add({Severity::fine, what, "none found", "", no_plugin});
    add({Severity::warning, what, "NCCL_NET_PLUGIN=" + printable(set) + " is not found", "a library that dlopen finds",
         "LD_LIBRARY_PATH of the job. Without it NCCL uses its own network code"});
  }
  const System& system_;
  const Places& places_;
  const Choice choice_;
  std::vector<Candidate> used_;  // RDMA devices
  std::vector<CheckResult> findings_;
};

}  // namespace

std::vector<CheckResult> check(const System& system, const Places& places) { return Checks(system, places).all(); }
std::vector<CheckResult> advice(const System& system, const Places& places) { return Checks(system, places).advice(); }

int run_check(int argc, const char* const* argv) {
  const bool advises = std::string_view(argv[0]) == "advise";
  std::string sysfs = "/sys", dev = "/dev", proc = "/proc", json_file;
  po::options_description known(advises ? "rdma_tune advise [options]: NCCL's other settings for this node, and why"
                                        : "rdma_tune check [options]: what is wrong here, and how to fix it");
  known.add_options()("dev", po::value(&dev)->default_value(dev), "the folder to look into in place of /dev")(
      "proc", po::value(&proc)->default_value(proc), "the folder to read in place of /proc");
  known.add(system_options(sysfs, json_file));
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  for (const auto& [option, folder] : {std::pair("--dev", dev), std::pair("--proc", proc)})
    if (std::error_code error; !fs::is_directory(folder, error))
      throw multinode::UsageError(std::string(option) + ": " + folder + " is not a folder");
  multinode::JsonLines json(json_file);

  const System system = read_system(sysfs);
  const Places places{sysfs, dev, proc, with_nccl_files(multinode::current_environment(), sysfs, NcclVersion{})};
  const std::vector<CheckResult> findings = advises ? advice(system, places) : check(system, places);

  std::map<Severity, int> count;
  nlohmann::json list = nlohmann::json::array();
  for (const CheckResult& finding : findings) {
    ++count[finding.severity];
    std::cout << text_of(finding.severity) << ": " << finding.what << ": " << finding.seen;
    if (!finding.expected.empty() && finding.severity != Severity::fine)
      std::cout << "; expected: " << finding.expected;
    std::cout << '\n';
    std::istringstream fix(finding.fix);
    for (std::string line; std::getline(fix, line);) std::cout << "    " << line << '\n';
    list.push_back({{"severity", text_of(finding.severity)},
                    {"what", finding.what},
                    {"seen", finding.seen},
                    {"expected", finding.expected},
                    {"fix", finding.fix}});
  }
  const int bad = count[Severity::bad];
  for (const std::string& problem : system.problems) std::cout << "problem: " << problem << '\n';
  if (findings.empty())
    std::cout << "no RDMA device in " << sysfs << "/class/infiniband" << (advises ? " that can be used" : "")
              << ": nothing to " << argv[0] << '\n';
  else if (!advises)
    std::cout << bad << " bad, " << count[Severity::warning] << " warnings, " << count[Severity::unknown]
              << " not seen\n";
  std::cout << std::flush;
  json.write({{"findings", list}, {"bad", bad}, {"problems", system.problems}});
  return bad ? multinode::exit_wrong : multinode::exit_right;
}

}  // namespace rdma
