#include "check.hpp"

#include "options.hpp"

#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>
#include <multinode/files.hpp>
#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>
#include <multinode/text.hpp>

#include <fmt/core.h>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

namespace rdma {

using multinode::is_there;
using multinode::join;
using multinode::names_in;
using multinode::read_number;
using multinode::read_text;
namespace fs = std::filesystem;
namespace po = boost::program_options;

std::string text_of(Severity severity) {
  static constexpr const char* names[] = {"fine", "note", "warning", "BAD", "not seen"};
  return names[static_cast<std::size_t>(severity)];
}

namespace {

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return text;
}

// The words behind "Name:" or "Name" at a line's start.
std::optional<std::vector<std::string>> line_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name)) {
      std::istringstream words(line.substr(name.size()));
      return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
    }
  return std::nullopt;
}

class Checks {
 public:
  Checks(const System& system, const Places& places) : system_(system), places_(places) {}

  std::vector<Finding> all() {
    other_namespace();
    if (system_.devices.empty()) return std::move(findings_);
    ports();
    memlock();
    for (const Device& device : system_.devices) uverbs(device);
    network_namespace();
    gpu_direct();
    access_control();
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (!port.is_active()) continue;
        mtu(device, port);
        traffic_class(device, port);
        losses(device, port);
        errors(device, port);
      }
    return std::move(findings_);
  }

 private:
  void add(Finding finding) { findings_.push_back(std::move(finding)); }

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
  const NetDevice* net_device(const std::string& name) const {
    for (const NetDevice& one : system_.net_devices)
      if (one.name == name) return &one;
    return nullptr;
  }
  // rxe and siw: nothing below them that a card would count or a switch would prefer.
  bool is_software(const Device& device) const {
    return device.pci.empty() && is_there(places_.sysfs / "class/infiniband" / device.name / "parent");
  }

  // /dev is the host's, sysfs is the namespace's: the devices are there, but not for this one.
  void other_namespace() {
    if (!system_.devices.empty()) return;
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
    const auto limits = read_text(places_.proc / "self/limits");
    const auto words = limits ? line_of(*limits, "Max locked memory") : std::nullopt;
    if (!words || words->size() < 2)
      return add({Severity::unknown, "memlock", "no 'Max locked memory' in " + (places_.proc / "self/limits").string(),
                  "unlimited", "ulimit -l"});
    const std::string& soft = words->front();
    if (soft == "unlimited") return add({Severity::fine, "memlock", "unlimited"});
    // With CAP_IPC_LOCK (bit 14) the limit does not hold.
    if (const auto status = read_text(places_.proc / "self/status"))
      if (const auto capabilities = line_of(*status, "CapEff:"); capabilities && !capabilities->empty())
        if ((std::strtoull(capabilities->front().c_str(), nullptr, 16) >> 14) & 1)
          return add({Severity::note, "memlock", printable(soft) + " bytes; not in force here, by CAP_IPC_LOCK",
                      "unlimited, for jobs without it", "/etc/security/limits.d/rdma.conf: '* - memlock unlimited'"});
    const double bytes = std::strtod(soft.c_str(), nullptr);
    add({bytes < 1024.0 * 1024 * 1024 ? Severity::bad : Severity::warning, "memlock", printable(soft) + " bytes",
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
      struct stat facts {};
      const multinode::Descriptor fd(::open(node.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
      const int error = fd ? 0 : errno;
      if (fd && ::fstat(fd.get(), &facts) < 0) facts.st_mode = 0666;
      if (error == ENOENT)
        return add({Severity::bad, what, "not there", "a device node",
                    "container: --device=/dev/infiniband/" + name +
                        " (Kubernetes: an RDMA device plugin); host: modprobe ib_uverbs"});
      if (error == EPERM)  // not the file's mode
        return add({Severity::bad, what, std::strerror(error), "read and write",
                    "the container's device cgroup forbids it: docker run --device=/dev/infiniband/" + name});
      if (error)
        return add({Severity::bad, what, std::strerror(error), "read and write",
                    "chmod 666 " + node.string() + "; for ever: udev rule KERNEL==\"uverbs*\", MODE=\"0666\""});
      const std::string mode = fmt::format("{:04o}", facts.st_mode & 07777);
      if ((facts.st_mode & 0006) != 0006)
        return add({Severity::warning, what, "mode " + mode + ": not for everyone", "0666",
                    "chmod 666 " + node.string() + "; for ever: udev rule KERNEL==\"uverbs*\", MODE=\"0666\""});
      return add({Severity::fine, what, "opens, mode " + mode});
    }
    add({Severity::bad, device.name + " uverbs", "no entry in " + verbs.string(), "uverbsN", "modprobe ib_uverbs"});
  }

  void network_namespace() {
    const auto mode = read_text(places_.sysfs / "module/ib_core/parameters/netns_mode");
    const std::string shown = !mode ? "mode not told" : *mode == "N" ? "exclusive mode" : "shared mode";
    bool foreign = false;
    for (const Device& device : system_.devices)
      for (const Port& port : device.ports) {
        if (!port.is_active() || port.link_layer != LinkLayer::ethernet) continue;
        const bool mine = std::any_of(port.gids.begin(), port.gids.end(), [&](const Gid& gid) {
          return !gid.net_device.empty() && net_device(gid.net_device) != nullptr;
        });
        if (mine) continue;
        // Where no GID tells its net device, the device's own may still be here.
        const bool told = std::any_of(port.gids.begin(), port.gids.end(), [](const Gid& gid) {
          return !gid.net_device.empty() || !gid.unreadable.empty();
        });
        if (!told && !port.gids.empty()) continue;
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
    const fs::path own = fs::read_symlink(places_.proc / "self/ns/net", error);
    const fs::path first = error ? fs::path() : fs::read_symlink(places_.proc / "1/ns/net", error);
    if (error)
      add({Severity::fine, "network namespace", shown + "; process 1's is not readable"});
    else
      add({Severity::fine, "network namespace",
           shown + (own == first ? "; the same as process 1's" : "; not process 1's")});
  }

  void gpu_direct() {
    if (system_.gpus.empty()) return add({Severity::fine, "GPUDirect RDMA", "no GPU here: nothing to look at"});
    for (const char* module : {"nvidia_peermem", "nv_peer_mem"})
      if (is_there(places_.sysfs / "module" / module))
        return add({Severity::fine, "GPUDirect RDMA", std::string(module) + " is loaded"});
    const auto driver = read_text(places_.proc / "driver/nvidia/version");
    if (!driver)
      return add({is_there(places_.sysfs / "module/nvidia") ? Severity::unknown : Severity::warning, "GPUDirect RDMA",
                  "no " + (places_.proc / "driver/nvidia/version").string() + ", nvidia_peermem is not loaded",
                  "nvidia_peermem, or dma-buf", "modprobe nvidia_peermem"});
    const std::string kernel = read_text(places_.proc / "sys/kernel/osrelease").value_or("");
    int major = 0, minor = 0;
    if (std::sscanf(kernel.c_str(), "%d.%d", &major, &minor) != 2) major = minor = 0;
    const bool open = driver->find("Open Kernel Module") != std::string::npos;
    if (open && (major > 5 || (major == 5 && minor >= 12)))
      return add(
          {Severity::fine, "GPUDirect RDMA", "dma-buf: NVIDIA's open kernel module, Linux " + printable(kernel)});
    add({Severity::warning, "GPUDirect RDMA",
         std::string("nvidia_peermem is not loaded; no dma-buf: ") +
             (open ? "Linux " + (kernel.empty() ? "of unknown version" : printable(kernel)) + " is before 5.12"
                   : "not NVIDIA's open kernel module"),
         "nvidia_peermem, or the open kernel module with Linux 5.12", "modprobe nvidia_peermem"});
  }

  // The PCI bridges above a device: 0000:3a:00.0 of .../pci0000:3a/0000:3a:00.0/0000:3b:00.0.
  void add_bridges(const std::string& pci, std::set<std::string>& bridges) const {
    std::error_code error;
    const fs::path path = fs::canonical(places_.sysfs / "bus/pci/devices" / pci, error);
    if (error) return;
    for (const fs::path& part : path.parent_path())
      if (part.native().size() == 12 && part.native()[4] == ':' && part.native()[10] == '.')
        bridges.insert(part.string());
  }

  void access_control() {
    if (system_.gpus.empty()) return;
    std::set<std::string> bridges;
    for (const Device& device : system_.devices)
      if (!device.pci.empty()) add_bridges(device.pci, bridges);
    for (const Gpu& gpu : system_.gpus) add_bridges(gpu.pci, bridges);
    std::vector<std::string> hidden, redirecting;
    for (const std::string& bridge : bridges) {
      bool told = false;
      const auto control = acs_control(places_.sysfs / "bus/pci/devices" / bridge / "config", told);
      if (!told)
        hidden.push_back(bridge);
      else if (control & 0x2c)  // P2P request redirect, completion redirect, egress control
        redirecting.push_back(bridge);
    }
    if (!redirecting.empty()) {
      std::string commands;
      for (const std::string& bridge : redirecting)
        commands += (commands.empty() ? "" : "\n") + ("setpci -s " + bridge + " ECAP_ACS+6.w=0000");
      add({Severity::warning, "PCIe ACS", "redirects at " + join(redirecting), "off between GPU and HCA",
           commands + "\nafter each boot, or in the BIOS; not where devices are passed through to virtual machines"});
    }
    if (!hidden.empty())
      add({Severity::unknown, "PCIe ACS", "configuration space of " + join(hidden) + " is not readable",
           "off between GPU and HCA", "as root: rdma_tune check, or lspci -vvv | grep ACSCtl"});
    if (redirecting.empty() && hidden.empty())
      add({Severity::fine, "PCIe ACS", std::to_string(bridges.size()) + " bridges, none redirects"});
  }

  // ACS control of a bridge; `told`: false where its extended configuration space cannot be read, which takes root.
  static unsigned acs_control(const fs::path& config, bool& told) {
    told = false;
    const auto read = [&]() -> std::optional<std::string> {
      std::error_code error;
      if (!fs::is_regular_file(config, error)) return std::nullopt;
      std::ifstream in(config, std::ios::binary);
      std::string bytes(4096, '\0');
      in.read(bytes.data(), 4096);
      if (in.bad()) return std::nullopt;
      bytes.resize(static_cast<std::size_t>(in.gcount()));
      return bytes;
    };
    const auto bytes = read();
    if (!bytes || bytes->size() < 64) return 0;
    const auto at = [&](std::size_t offset) {
      return static_cast<unsigned>(static_cast<std::uint8_t>((*bytes)[offset]));
    };
    if (bytes->size() < 4096) {
      // sysfs shows 64 bytes to others than root; 256 are all that a conventional bridge has, which has no ACS.
      told = bytes->size() == 256;
      return 0;
    }
    told = true;
    std::size_t capability = 0x100;
    for (int hops = 0; hops < 960 && capability >= 0x100 && capability + 8 <= bytes->size(); ++hops) {
      const unsigned id = at(capability) | at(capability + 1) << 8;
      if (id == 0x000d) return at(capability + 6) | at(capability + 7) << 8;
      capability = (at(capability + 2) | at(capability + 3) << 8) >> 4 & 0xffc;
    }
    return 0;
  }

  void mtu(const Device& device, const Port& port) {
    const std::string what = name_of(device, port) + " MTU";
    const bool ethernet = port.link_layer == LinkLayer::ethernet;
    const auto names = net_devices_of(device, port);
    const std::string mend = ethernet ? "ip link set " + (names.empty() ? "INTERFACE" : *names.begin()) +
                                            " mtu 9000, on all nodes and switches: nodes that differ hang"
                                      : "the subnet manager's partitions.conf: mtu=5";
    if (port.active_mtu && port.max_mtu) {
      const std::string seen = std::to_string(*port.active_mtu) + " of " + std::to_string(*port.max_mtu);
      if (*port.active_mtu >= *port.max_mtu) return add({Severity::fine, what, seen});
      return add({Severity::warning, what, seen, std::to_string(*port.max_mtu), mend});
    }
    const NetDevice* net = nullptr;
    for (const std::string& name : names)
      if (!net) net = net_device(name);
    if (!ethernet || !net || net->mtu <= 0)
      return add({Severity::unknown, what, "sysfs does not tell", "the port's maximum", "ibv_devinfo | grep mtu"});
    // As the kernel derives it: the net device's less 96 octets of headers, and then the next that RDMA knows.
    int active = 256;
    while (active < 4096 && active * 2 + 96 <= net->mtu) active *= 2;
    const std::string seen = std::to_string(active) + ", by " + net->name + "'s " + std::to_string(net->mtu);
    if (active == 4096) return add({Severity::fine, what, seen});
    add({Severity::warning, what, seen, "4096", mend});
  }

  void traffic_class(const Device& device, const Port& port) {
    if (port.link_layer != LinkLayer::ethernet || is_software(device)) return;
    const std::string what = name_of(device, port) + " traffic class";
    const std::string expected = "the switches' lossless class";
    const std::string mend =
        "NCCL_IB_TC=106 (DSCP 26), if that is the switches'; PFC and ECN: mlnx_qos -i INTERFACE (lldptool, dcb)";
    if (places_.nccl_ib_tc)
      return add(
          {Severity::fine, what, "NCCL_IB_TC=" + printable(*places_.nccl_ib_tc) + "; the switches' is not seen"});
    std::optional<std::string> forced = read_text(places_.sysfs / "class/infiniband" / device.name / "tc" /
                                                  std::to_string(port.number) / "traffic_class");
    if (forced && !forced->empty()) return add({Severity::fine, what, printable(*forced)});
    const auto by_cm = read_number<std::uint64_t>(places_.sysfs / "kernel/config/rdma_cm" / device.name / "ports" /
                                                  std::to_string(port.number) / "default_roce_tos");
    add({Severity::note, what,
         "NCCL_IB_TC is not set: NCCL sends with 0" +
             (by_cm ? "; rdma_cm with " + std::to_string(*by_cm) : std::string()),
         expected, mend});
  }

  // Names and sum of those counters that are not zero; `seen`: whether any is there.
  struct Tally {
    std::vector<std::string> nonzero;
    std::uint64_t sum = 0;
    bool seen = false;
  };
  template <std::size_t count>
  static Tally tally(const fs::path& folder, const std::array<const char*, count>& files) {
    Tally result;
    for (const char* file : files) {
      const auto number = read_number<std::uint64_t>(folder / file);
      if (!number) continue;
      result.seen = true;
      if (!*number) continue;
      result.sum += *number;
      result.nonzero.push_back(fs::path(file).filename().string() + " " + std::to_string(*number));
    }
    return result;
  }

  void losses(const Device& device, const Port& port) {
    static constexpr std::array lost = {
        // mlx5
        "hw_counters/out_of_sequence", "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err",
        "hw_counters/implied_nak_seq_err", "hw_counters/rnr_nak_retry_err",
        // rxe
        "hw_counters/out_of_seq_request", "hw_counters/rcvd_seq_err", "hw_counters/completer_retry_err",
        "hw_counters/retry_exceeded_err", "hw_counters/retry_rnr_exceeded_err",
        // bnxt_re
        "hw_counters/oos_drop_count", "hw_counters/seq_err_naks_rcvd", "hw_counters/to_retransmits",
        "hw_counters/max_retry_exceeded", "hw_counters/rx_roce_discards",
        // irdma, older and newer
        "hw_counters/tcpRetransSegs", "hw_counters/RetransSegs", "hw_counters/ip4InDiscards",
        // efa, mana
        "hw_counters/retrans_pkts", "hw_counters/rx_drops", "hw_counters/requester_timeout",
        "hw_counters/responder_oos", "hw_counters/requester_retries_exceeded"};
    static constexpr std::array marked = {"hw_counters/np_ecn_marked_roce_packets",
                                          "hw_counters/np_cnp_sent",
                                          "hw_counters/rp_cnp_handled",
                                          "hw_counters/RxECNMrkd",
                                          "hw_counters/cnpHandled",
                                          "hw_counters/received_cnps"};
    const fs::path folder = folder_of(device, port);
    const std::string what = name_of(device, port);
    const Tally losses = tally(folder, lost);
    if (!losses.seen) {
      add({Severity::unknown, what + " losses", "no counter of losses", "0",
           "rdma statistic show link " + device.name + "/" + std::to_string(port.number)});
    } else if (losses.nonzero.empty()) {
      add({Severity::fine, what + " losses", "none out of sequence, none sent again"});
    } else {
      std::uint64_t packets = 0;
      for (const char* file : {"counters/port_rcv_packets", "hw_counters/rcvd_pkts", "hw_counters/rx_pkts"})
        packets = std::max(packets, read_number<std::uint64_t>(folder / file).value_or(0));
      const double share = static_cast<double>(losses.sum) / static_cast<double>(packets);
      const bool few = packets && share < 1e-6;
      add({few ? Severity::note : Severity::warning, what + " losses",
           join(losses.nonzero) + (packets ? fmt::format("; {:.2g} of the packets received", share) : ""),
           "0, or no growth during a run",
           port.link_layer == LinkLayer::ethernet
               ? "PFC or ECN on the path: mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0, and the same on the switches"
               : "ibqueryerrors: a cable or a switch"});
    }
    if (const Tally congestion = tally(folder, marked); !congestion.nonzero.empty())
      add({Severity::note, what + " congestion", join(congestion.nonzero) + ": ECN is at work"});
    if (const auto waited = read_number<std::uint64_t>(folder / "counters/port_xmit_wait"); waited && *waited)
      add({Severity::note, what + " congestion", "port_xmit_wait " + std::to_string(*waited),
           "no steep growth during a run"});
    if (port.link_layer != LinkLayer::ethernet || is_software(device)) return;
    const auto names = net_devices_of(device, port);
    add({Severity::unknown, what + " pause frames", "sysfs does not count them", "no steep growth during a run",
         "ethtool -S " + (names.empty() ? "INTERFACE" : *names.begin()) + " | grep -i pause"});
  }

  void errors(const Device& device, const Port& port) {
    static constexpr std::array counters = {"counters/symbol_error",
                                            "counters/link_error_recovery",
                                            "counters/link_downed",
                                            "hw_counters/link_downed",
                                            "counters/port_rcv_errors",
                                            "counters/port_rcv_remote_physical_errors",
                                            "counters/port_xmit_discards",
                                            "counters/port_rcv_constraint_errors",
                                            "counters/port_xmit_constraint_errors",
                                            "counters/local_link_integrity_errors",
                                            "counters/excessive_buffer_overrun_errors",
                                            "hw_counters/rx_icrc_encapsulated",
                                            "hw_counters/rx_roce_errors",
                                            "hw_counters/unrecoverable_err"};
    static constexpr std::array of_net = {"statistics/rx_crc_errors", "statistics/rx_frame_errors",
                                          "statistics/tx_carrier_errors"};
    const std::string what = name_of(device, port) + " errors";
    Tally found = tally(folder_of(device, port), counters);
    for (const std::string& name : net_devices_of(device, port)) {
      const Tally more = tally(places_.sysfs / "class/net" / name, of_net);
      found.seen = found.seen || more.seen;
      for (const std::string& one : more.nonzero) found.nonzero.push_back(name + " " + one);
    }
    if (!found.seen)
      add({Severity::unknown, what, "no counter of errors", "0", "perfquery, ethtool -S"});
    else if (found.nonzero.empty())
      add({Severity::fine, what, "none"});
    else
      add({Severity::warning, what, join(found.nonzero), "0, or no growth during a run",
           port.link_layer == LinkLayer::infiniband ? "ibqueryerrors, mlxlink -d " + device.name + " -c: a cable"
                                                    : "mlxlink -d " + device.name + " -c, ethtool -m: a cable"});
  }

  const System& system_;
  const Places& places_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check(const System& system, const Places& places) { return Checks(system, places).all(); }

int run_check(int argc, const char* const* argv) {
  SystemOptions options;
  std::string dev = "/dev", proc = "/proc";
  po::options_description known("rdma_tune check [options]: what is wrong here, and how to fix it");
  known.add_options()("dev", po::value(&dev)->default_value(dev), "the folder to look into in place of /dev")(
      "proc", po::value(&proc)->default_value(proc), "the folder to read in place of /proc");
  known.add(options.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  for (const auto& [option, folder] : {std::pair("--dev", dev), std::pair("--proc", proc)})
    if (std::error_code error; !fs::is_directory(folder, error))
      throw multinode::UsageError(std::string(option) + ": " + folder + " is no folder");
  multinode::JsonLines json(options.json);

  const System system = read_system(options.sysfs);
  Places places{options.sysfs, dev, proc, std::nullopt};
  if (const char* traffic_class = std::getenv("NCCL_IB_TC")) places.nccl_ib_tc = traffic_class;
  const std::vector<Finding> findings = check(system, places);

  int bad = 0, warnings = 0, unknown = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    bad += finding.severity == Severity::bad;
    warnings += finding.severity == Severity::warning;
    unknown += finding.severity == Severity::unknown;
    std::cout << text_of(finding.severity) << ": " << finding.what << ": " << finding.seen;
    if (!finding.expected.empty() && finding.severity != Severity::fine)
      std::cout << "; expected: " << finding.expected;
    std::cout << '\n';
    std::istringstream mend(finding.mend);
    for (std::string line; std::getline(mend, line);) std::cout << "    " << line << '\n';
    list.push_back({{"severity", text_of(finding.severity)},
                    {"what", finding.what},
                    {"seen", finding.seen},
                    {"expected", finding.expected},
                    {"mend", finding.mend}});
  }
  for (const std::string& problem : system.problems) std::cout << "problem: " << problem << '\n';
  if (findings.empty())
    std::cout << "no RDMA device in " << options.sysfs << "/class/infiniband: nothing to check\n";
  else
    std::cout << bad << " bad, " << warnings << " warnings, " << unknown << " not seen\n";
  std::cout << std::flush;
  json.write({{"findings", list}, {"bad", bad}, {"problems", system.problems}});
  return bad ? multinode::exit_wrong : multinode::exit_right;
}

}  // namespace rdma
