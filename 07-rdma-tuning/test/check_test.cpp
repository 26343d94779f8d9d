// What `rdma_tune check` finds. The trees stand in for machines that have the fault; they are written here.
#include "rdma_tune/check.hpp"

#include "scratch.hpp"

#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

namespace check_test {

using multinode::testing::Result;
using rdma::Finding;
using rdma::Severity;
using rdma::testing::Scratch;

rdma::Places places_in(const Scratch& root) { return {root / "sys", root / "dev", root / "proc", std::nullopt}; }

// A machine with one RoCE card, eth0 at MTU 9000, and nothing wrong; tests spoil it.
struct Machine {
  Scratch root;
  std::string card = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/";
  std::string port = card + "infiniband/mlx5_0/ports/1/";

  Machine() {
    root.write(card + "class", "0x020000");
    root.write(card + "numa_node", "0");
    root.write(card + "infiniband/mlx5_0/node_type", "1: CA");
    root.link(card + "infiniband/mlx5_0/device", "../..");
    root.write(port + "state", "4: ACTIVE");
    root.write(port + "phys_state", "5: LinkUp");
    root.write(port + "link_layer", "Ethernet");
    root.write(port + "rate", "100 Gb/sec (4X EDR)");
    root.write(port + "gids/0", "0000:0000:0000:0000:0000:ffff:c0a8:4d01");
    root.write(port + "gid_attrs/types/0", "RoCE v2");
    root.write(port + "gid_attrs/ndevs/0", "eth0");
    root.write(port + "hw_counters/out_of_sequence", "0");
    root.write(port + "hw_counters/packet_seq_err", "0");
    root.write(port + "counters/port_rcv_errors", "0");
    root.write(port + "counters/port_rcv_packets", "1000000");
    root.write(card + "net/eth0/mtu", "9000");
    root.write(card + "net/eth0/operstate", "up");
    root.write(card + "net/eth0/statistics/rx_crc_errors", "0");
    root.link(card + "net/eth0/device", "../..");
    root.link("sys/class/infiniband/mlx5_0", "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/mlx5_0");
    root.link("sys/class/net/eth0", "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/net/eth0");
    root.link("sys/bus/pci/devices/0000:3b:00.0", "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
    root.link("sys/bus/pci/devices/0000:3a:00.0", "../../../devices/pci0000:3a/0000:3a:00.0");
    root.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    root.write("sys/module/ib_core/parameters/netns_mode", "Y");
    root.write("dev/infiniband/uverbs0", "");
    mode(0666);
    root.write("proc/self/limits", limits("unlimited"));
    root.write("proc/self/status", "Name:\trdma_tune\nCapEff:\t0000000000000000");
    root.folder("proc/self/ns");
    root.folder("proc/1/ns");
    root.link("proc/self/ns/net", "net:[4026531840]");
    root.link("proc/1/ns/net", "net:[4026531840]");
  }

  static std::string limits(const std::string& memlock) {
    return "Limit                     Soft Limit           Hard Limit           Units     \n"
           "Max processes             1000                 1000                 processes \n"
           "Max locked memory         " +
           memlock + "            " + memlock + "            bytes     \n";
  }
  void mode(mode_t mode) const { ASSERT_EQ(::chmod((root / "dev/infiniband/uverbs0").c_str(), mode), 0); }

  // A GPU below the same bridge.
  void add_gpu() const {
    const std::string gpu = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3c:00.0/";
    root.write(gpu + "class", "0x030200");
    root.write(gpu + "vendor", "0x10de");
    root.write(gpu + "numa_node", "0");
    root.link("sys/bus/pci/devices/0000:3c:00.0", "../../../devices/pci0000:3a/0000:3a:00.0/0000:3c:00.0");
  }

  rdma::Places places() const { return places_in(root); }
  std::vector<Finding> check() const { return rdma::check(rdma::read_system(root.path() / "sys"), places()); }
};

std::string all(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings)
    text += text_of(finding.severity) + ": " + finding.what + ": " + finding.seen + "; " + finding.expected + "; " +
            finding.mend + "\n";
  return text;
}

// The finding whose `what` contains the word; fails the test where it is not there once.
Finding of(const std::vector<Finding>& findings, const std::string& word) {
  std::vector<Finding> found;
  for (const Finding& finding : findings)
    if (finding.what.find(word) != std::string::npos) found.push_back(finding);
  EXPECT_EQ(found.size(), 1u) << word << " in\n" << all(findings);
  return found.empty() ? Finding{} : found.front();
}

void expect(const Finding& finding, Severity severity, const std::string& seen, const std::string& mend = "") {
  EXPECT_EQ(text_of(finding.severity), text_of(severity)) << finding.what << ": " << finding.seen;
  EXPECT_NE(finding.seen.find(seen), std::string::npos) << finding.what << ": " << finding.seen;
  EXPECT_NE(finding.mend.find(mend), std::string::npos) << finding.what << ": " << finding.mend;
  if (severity == Severity::bad || severity == Severity::warning) {
    EXPECT_FALSE(finding.mend.empty()) << finding.what;
    EXPECT_FALSE(finding.expected.empty()) << finding.what;
  }
}

TEST(Check, AMachineWithNothingWrong) {
  const Machine machine;
  const auto findings = machine.check();
  for (const Finding& finding : findings)
    EXPECT_TRUE(finding.severity == Severity::fine || finding.what == "mlx5_0:1 traffic class" ||
                finding.what == "mlx5_0:1 pause frames")
        << all({finding});
  expect(of(findings, "ports"), Severity::fine, "all active");
  expect(of(findings, "memlock"), Severity::fine, "unlimited");
  expect(of(findings, "uverbs0"), Severity::fine, "mode 0666");
  expect(of(findings, "namespace"), Severity::fine, "shared mode; the same as process 1's");
  expect(of(findings, "GPUDirect"), Severity::fine, "no GPU");
  expect(of(findings, "MTU"), Severity::fine, "4096");
  expect(of(findings, "losses"), Severity::fine, "none");
  expect(of(findings, "errors"), Severity::fine, "none");
  expect(of(findings, "pause"), Severity::unknown, "sysfs", "ethtool -S eth0");
}

TEST(Check, NoDeviceNothingToCheck) {
  const Scratch root;
  root.folder("sys/class/infiniband");
  root.folder("dev");
  root.folder("proc");
  const rdma::Places places = places_in(root);
  EXPECT_EQ(all(rdma::check(rdma::read_system(places.sysfs), places)), "");
  // The host's /dev with another namespace's sysfs.
  root.write("dev/infiniband/uverbs0", "");
  const auto findings = rdma::check(rdma::read_system(places.sysfs), places);
  expect(of(findings, "RDMA devices"), Severity::bad, "none here, but", "rdma dev set");
}

TEST(Check, Memlock) {
  const Machine machine;
  machine.root.write("proc/self/limits", Machine::limits("8388608"));
  expect(of(machine.check(), "memlock"), Severity::bad, "8388608 bytes", "ulimit -l unlimited");
  machine.root.write("proc/self/limits", Machine::limits("4294967296"));
  expect(of(machine.check(), "memlock"), Severity::warning, "4294967296 bytes");
  machine.root.write("proc/self/status", "CapEff:\t000001ffffffbfff");  // all but CAP_IPC_LOCK
  machine.root.write("proc/self/limits", Machine::limits("65536"));
  expect(of(machine.check(), "memlock"), Severity::bad, "65536 bytes");
  machine.root.write("proc/self/status", "CapEff:\t0000000000004000");
  expect(of(machine.check(), "memlock"), Severity::note, "CAP_IPC_LOCK");
  machine.root.write("proc/self/limits", "nothing of the kind");
  expect(of(machine.check(), "memlock"), Severity::unknown, "Max locked memory");
  machine.root.remove("proc/self/limits");
  expect(of(machine.check(), "memlock"), Severity::unknown, "Max locked memory");
}

TEST(Check, DeviceNodes) {
  const Machine machine;
  machine.mode(0600);
  expect(of(machine.check(), "uverbs0"), Severity::warning, "0600", "udev");
  machine.root.remove("dev/infiniband/uverbs0");
  expect(of(machine.check(), "uverbs0"), Severity::bad, "not there", "--device=/dev/infiniband/uverbs0");
  machine.root.folder("dev/infiniband/uverbs0");
  expect(of(machine.check(), "uverbs0"), Severity::bad, "Is a directory");
  machine.root.remove("sys/class/infiniband_verbs");
  expect(of(machine.check(), "uverbs"), Severity::bad, "no entry", "modprobe ib_uverbs");
}

TEST(Check, PortsDown) {
  const Machine machine;
  machine.root.write(machine.port + "state", "1: DOWN");
  expect(of(machine.check(), "ports"), Severity::bad, "mlx5_0:1 DOWN");
  EXPECT_EQ(all(machine.check()).find("MTU"), std::string::npos) << "a port that is down has no MTU to judge";
}

TEST(Check, GidsOfAnotherNamespace) {
  const Machine machine;
  machine.root.write("sys/module/ib_core/parameters/netns_mode", "N");
  machine.root.write(machine.port + "gid_attrs/ndevs/0", "net1");
  expect(of(machine.check(), "namespace"), Severity::bad, "exclusive mode", "rdma dev set mlx5_0 netns");
  // Not so where the net device is here.
  machine.root.write(machine.port + "gid_attrs/ndevs/0", "eth0");
  machine.root.remove("proc/1/ns/net");
  machine.root.link("proc/1/ns/net", "net:[4026532000]");
  expect(of(machine.check(), "namespace"), Severity::fine, "not process 1's");
  machine.root.remove("proc/1/ns/net");
  expect(of(machine.check(), "namespace"), Severity::fine, "not readable");
}

TEST(Check, GpuDirect) {
  const Machine machine;
  machine.add_gpu();
  ASSERT_EQ(rdma::read_system(machine.root / "sys").gpus.size(), 1u);
  machine.root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54");
  machine.root.write("proc/sys/kernel/osrelease", "6.1.0-56-amd64");
  expect(of(machine.check(), "GPUDirect"), Severity::warning, "not NVIDIA's open kernel module",
         "modprobe nvidia_peermem");
  machine.root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1");
  expect(of(machine.check(), "GPUDirect"), Severity::fine, "dma-buf");
  machine.root.write("proc/sys/kernel/osrelease", "5.4.0-100-generic");
  expect(of(machine.check(), "GPUDirect"), Severity::warning, "before 5.12");
  machine.root.folder("sys/module/nvidia_peermem");
  expect(of(machine.check(), "GPUDirect"), Severity::fine, "nvidia_peermem is loaded");
}

// Configuration space: 4096 octets; its extended capabilities begin at 0x100, ACS is number 0x000d.
TEST(Check, AccessControlServices) {
  const Machine machine;
  machine.add_gpu();
  const std::string config = "sys/devices/pci0000:3a/0000:3a:00.0/config";
  expect(of(machine.check(), "ACS"), Severity::unknown, "0000:3a:00.0");
  const auto write = [&](std::string bytes) {
    std::ofstream out(machine.root / config, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  std::string space(4096, '\0');
  const auto put = [&](std::size_t at, unsigned value) {
    space[at] = static_cast<char>(value & 0xff);
    space[at + 1] = static_cast<char>(value >> 8);
  };
  put(0x100, 0x0001);  // advanced error reporting, then 0x148
  put(0x102, 0x1482);
  put(0x148, 0x000d);
  put(0x14a, 0x0001);
  put(0x14c, 0x001f);  // what it can do
  put(0x14e, 0x001d);  // what is on
  write(space);
  expect(of(machine.check(), "ACS"), Severity::warning, "redirects at 0000:3a:00.0",
         "setpci -s 0000:3a:00.0 ECAP_ACS+6.w=0000");
  put(0x14e, 0x0011);
  write(space);
  expect(of(machine.check(), "ACS"), Severity::fine, "1 bridges, none redirects");
  put(0x14a, 0x1481);  // its own successor
  put(0x148, 0x0002);
  write(space);
  expect(of(machine.check(), "ACS"), Severity::fine, "none redirects");
  write(space.substr(0, 64));  // what others than root see
  expect(of(machine.check(), "ACS"), Severity::unknown, "not readable", "as root");
  write(space.substr(0, 256));  // a conventional bridge
  expect(of(machine.check(), "ACS"), Severity::fine, "none redirects");
  write("");
  expect(of(machine.check(), "ACS"), Severity::unknown, "not readable");
}

TEST(Check, MtuFromTheInterface) {
  const struct {
    int net;
    const char* seen;
  } cases[] = {{1500, "1024"}, {2143, "1024"}, {2144, "2048"}, {4191, "2048"}, {600, "256"}};
  for (const auto& one : cases) {
    const Machine machine;
    machine.root.write(machine.card + "net/eth0/mtu", std::to_string(one.net));
    const Finding finding = of(machine.check(), "MTU");
    expect(finding, Severity::warning, one.seen, "ip link set eth0 mtu 9000");
    EXPECT_EQ(finding.seen, std::string(one.seen) + ", by eth0's " + std::to_string(one.net));
  }
  const Machine machine;
  machine.root.write(machine.card + "net/eth0/mtu", "4192");
  expect(of(machine.check(), "MTU"), Severity::fine, "4096");
}

TEST(Check, MtuFromVerbs) {
  const Machine machine;
  rdma::System system = rdma::read_system(machine.root / "sys");
  system.devices.at(0).ports.at(0).active_mtu = 1024;
  system.devices.at(0).ports.at(0).max_mtu = 4096;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::warning, "1024 of 4096", "ip link set eth0");
  system.devices.at(0).ports.at(0).link_layer = rdma::LinkLayer::infiniband;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::warning, "1024 of 4096", "partitions.conf");
  system.devices.at(0).ports.at(0).active_mtu = 4096;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::fine, "4096 of 4096");
}

TEST(Check, TrafficClass) {
  const Machine machine;
  expect(of(machine.check(), "traffic class"), Severity::note, "NCCL_IB_TC is not set", "NCCL_IB_TC=106");
  machine.root.write("sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "104");
  expect(of(machine.check(), "traffic class"), Severity::note, "rdma_cm with 104");
  rdma::Places places = machine.places();
  places.nccl_ib_tc = "106";
  expect(of(rdma::check(rdma::read_system(places.sysfs), places), "traffic class"), Severity::fine, "NCCL_IB_TC=106");
  machine.root.write(machine.card + "infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=96");
  expect(of(machine.check(), "traffic class"), Severity::fine, "Global tclass=96");
}

TEST(Check, LossesAndErrors) {
  const Machine machine;
  machine.root.write(machine.port + "hw_counters/out_of_sequence", "5000");
  expect(of(machine.check(), "losses"), Severity::warning, "out_of_sequence 5000; 0.005 of the packets", "mlnx_qos");
  machine.root.write(machine.port + "counters/port_rcv_packets", "900000000000");
  expect(of(machine.check(), "losses"), Severity::note, "out_of_sequence 5000");
  machine.root.write(machine.port + "hw_counters/np_cnp_sent", "77");
  expect(of(machine.check(), "congestion"), Severity::note, "np_cnp_sent 77");
  machine.root.write(machine.port + "counters/port_rcv_errors", "3");
  machine.root.write(machine.card + "net/eth0/statistics/rx_crc_errors", "9");
  expect(of(machine.check(), "errors"), Severity::warning, "port_rcv_errors 3, eth0 rx_crc_errors 9", "mlxlink");
  machine.root.write(machine.port + "counters/port_rcv_errors", "a few");
  machine.root.write(machine.port + "hw_counters/out_of_sequence", "");
  machine.root.write(machine.port + "hw_counters/packet_seq_err", "99999999999999999999999");
  expect(of(machine.check(), "losses"), Severity::unknown, "no counter");
  expect(of(machine.check(), "errors"), Severity::warning, "eth0 rx_crc_errors 9");
}

#ifdef PATH_rdma_tune

Result run_check(const Machine& machine, const std::vector<std::string>& more = {}) {
  std::vector<std::string> argv{
      PATH_rdma_tune,       "check", "--sysfs", machine.root / "sys", "--dev", machine.root / "dev", "--proc",
      machine.root / "proc"};
  argv.insert(argv.end(), more.begin(), more.end());
  return multinode::testing::run(argv, {{"NCCL_IB_TC", ""}});
}

TEST(CheckProgram, StatusSaysWhetherSomethingIsBad) {
  const Machine machine;
  const Result fine = run_check(machine);
  EXPECT_EQ(fine.status, 0) << fine.all();
  EXPECT_NE(fine.out.find("\n0 bad, 0 warnings, 1 not seen\n"), std::string::npos) << fine.out;
  machine.root.write("proc/self/limits", Machine::limits("65536"));
  const Result bad = run_check(machine, {"--json", machine.root / "check.json"});
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.out.find("BAD: memlock: 65536 bytes; expected: unlimited\n    ulimit -l unlimited"), std::string::npos)
      << bad.out;
  std::ifstream in(machine.root / "check.json");
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["bad"], 1);
  std::string severities;
  for (const auto& finding : json["findings"]) severities += finding["severity"].get<std::string>() + "\n";
  EXPECT_EQ(multinode::testing::occurrences(severities, "BAD\n"), 1u) << severities;
}

TEST(CheckProgram, NothingToCheck) {
  const Machine machine;
  machine.root.remove("sys/class/infiniband");
  machine.root.remove("dev/infiniband");
  const Result result = run_check(machine);
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.out.find("nothing to check"), std::string::npos) << result.out;
}

TEST(CheckProgram, BadCommandLines) {
  const Machine machine;
  for (const std::string option : {"--sysfs", "--dev", "--proc"}) {
    const Result result = multinode::testing::run({PATH_rdma_tune, "check", option, "/no/such"});
    EXPECT_EQ(result.status, 2) << option;
    EXPECT_NE(result.err.find("/no/such"), std::string::npos) << result.err;
    EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1u) << result.err;
  }
}

#endif

}  // namespace check_test
