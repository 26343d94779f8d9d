// What `rdma_tune check` finds. The trees stand in for machines that have the fault; they are written here.
#include "rdma_tune/check.hpp"

#include "scratch.hpp"
#include "tree.hpp"

#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

namespace check_test {

using multinode::testing::Result;
using rdma::Finding;
using rdma::Severity;
using rdma::testing::Scratch, rdma::testing::Tree;

rdma::Places places_in(const Scratch& root) { return {root / "sys", root / "dev", root / "proc", {}}; }

// A machine with one RoCE card, rail0 at MTU 9000, and nothing wrong; tests damage it.
struct Machine {
  Scratch root;
  std::string card = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/";
  std::string port = card + "infiniband/mlx5_0/ports/1/";

  Machine() {
    std::filesystem::copy(Tree::load("ipv4-link-local").root(), root.path(),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    root.write(port + "hw_counters/out_of_sequence", "0");
    root.write(port + "hw_counters/packet_seq_err", "0");
    root.write(port + "counters/port_rcv_errors", "0");
    root.write(port + "counters/port_rcv_packets", "1000000");
    root.write(card + "net/rail0/statistics/rx_crc_errors", "0");
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
            finding.fix + "\n";
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

void expect(const Finding& finding, Severity severity, const std::string& seen, const std::string& fix = "") {
  EXPECT_EQ(text_of(finding.severity), text_of(severity)) << finding.what << ": " << finding.seen;
  EXPECT_SAYS(finding.seen, seen) << finding.what << ": " << finding.seen;
  EXPECT_SAYS(finding.fix, fix) << finding.what << ": " << finding.fix;
  if (severity == Severity::bad || severity == Severity::warning) {
    EXPECT_FALSE(finding.fix.empty()) << finding.what;
    EXPECT_FALSE(finding.expected.empty()) << finding.what;
  }
}

TEST(Check, AMachineWithNothingWrong) {
  const Machine machine;
  const auto findings = machine.check();
  for (const Finding& finding : findings) EXPECT_EQ(finding.severity, Severity::fine) << all({finding});
  expect(of(findings, "ports"), Severity::fine, "all active");
  expect(of(findings, "memlock"), Severity::fine, "unlimited");
  expect(of(findings, "uverbs0"), Severity::fine, "mode 0666");
  expect(of(findings, "namespace"), Severity::fine, "shared mode; the same as process 1's");
  expect(of(findings, "GPUDirect"), Severity::fine, "no GPU");
  expect(of(findings, "MTU"), Severity::fine, "4096");
  expect(of(findings, "losses"), Severity::fine, "none");
  expect(of(findings, "errors"), Severity::fine, "none");
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

// What one fault or setting makes of the machine: files are written, linked ("->TARGET"), made folders ("/") or
// removed (nullptr).
TEST(Check, EachFault) {
  const std::string limits = "proc/self/limits", port = Machine().port, rail0 = Machine().card + "net/rail0/";
  const std::string driver = "proc/driver/nvidia/version", kernel = "proc/sys/kernel/osrelease";
  const char* const open_module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1";
  const std::string mib8 = Machine::limits("8388608"), gib4 = Machine::limits("4294967296");
  const auto one = [&](const char* what, Severity severity, const char* seen, const char* fix,
                       const std::vector<std::pair<std::string, const char*>>& files) {
    const Machine machine;
    machine.add_gpu();
    for (const auto& [file, contents] : files) {
      machine.root.remove(file);
      const std::string text = contents ? contents : "";
      if (text == "/")
        machine.root.folder(file);
      else if (text.starts_with("->"))
        machine.root.link(file, text.substr(2));
      else if (contents)
        machine.root.write(file, text);
    }
    expect(of(machine.check(), what), severity, seen, fix);
  };
  one("memlock", Severity::bad, "8388608 bytes", "ulimit -l unlimited", {{limits, mib8.c_str()}});
  one("memlock", Severity::warning, "4294967296 bytes", "", {{limits, gib4.c_str()}});
  one("memlock", Severity::bad, "8388608 bytes", "",
      {{limits, mib8.c_str()}, {"proc/self/status", "CapEff:\t000001ffffffbfff"}});
  one("memlock", Severity::note, "CAP_IPC_LOCK", "",
      {{limits, mib8.c_str()}, {"proc/self/status", "CapEff:\t0000000000004000"}});
  one("memlock", Severity::unknown, "Max locked memory", "", {{limits, "nothing of the kind"}});
  one("memlock", Severity::unknown, "Max locked memory", "", {{limits, nullptr}});
  one("uverbs0", Severity::bad, "not there", "--device=/dev/infiniband/uverbs0", {{"dev/infiniband/uverbs0", nullptr}});
  one("uverbs0", Severity::bad, "Is a directory", "", {{"dev/infiniband/uverbs0", "/"}});
  one("uverbs", Severity::bad, "no entry", "modprobe ib_uverbs", {{"sys/class/infiniband_verbs", nullptr}});
  one("ports", Severity::bad, "mlx5_0:1 DOWN", "", {{port + "state", "1: DOWN"}});
  one("namespace", Severity::bad, "exclusive mode", "rdma dev set mlx5_0 netns",
      {{"sys/module/ib_core/parameters/netns_mode", "N"}, {"sys/class/net/rail0", nullptr}});
  one("namespace", Severity::fine, "not process 1's", "", {{"proc/1/ns/net", "->net:[4026532000]"}});
  one("namespace", Severity::fine, "not readable", "", {{"proc/1/ns/net", nullptr}});
  one("GPUDirect", Severity::warning, "not NVIDIA's open kernel module", "modprobe nvidia_peermem",
      {{driver, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54"}, {kernel, "6.1.0-56-amd64"}});
  one("GPUDirect", Severity::fine, "dma-buf", "", {{driver, open_module}, {kernel, "6.1.0-56-amd64"}});
  one("GPUDirect", Severity::warning, "before 5.12", "", {{driver, open_module}, {kernel, "5.4.0-100-generic"}});
  one("GPUDirect", Severity::fine, "nvidia_peermem is loaded", "", {{"sys/module/nvidia_peermem", "/"}});
  one("MTU", Severity::warning, "1024, by rail0's 1500", "ip link set rail0 mtu 9000", {{rail0 + "mtu", "1500"}});
  one("MTU", Severity::warning, "1024, by rail0's 2143", "", {{rail0 + "mtu", "2143"}});
  one("MTU", Severity::warning, "2048, by rail0's 2144", "", {{rail0 + "mtu", "2144"}});
  one("MTU", Severity::warning, "2048, by rail0's 4191", "", {{rail0 + "mtu", "4191"}});
  one("MTU", Severity::warning, "256, by rail0's 600", "", {{rail0 + "mtu", "600"}});
  one("MTU", Severity::fine, "4096", "", {{rail0 + "mtu", "4192"}});
  one("losses", Severity::warning, "out_of_sequence 5000; 0.005 of the packets", "mlnx_qos",
      {{port + "hw_counters/out_of_sequence", "5000"}});
  one("losses", Severity::note, "out_of_sequence 5000", "",
      {{port + "hw_counters/out_of_sequence", "5000"}, {port + "counters/port_rcv_packets", "900000000000"}});
  one("losses", Severity::unknown, "no counter", "",
      {{port + "hw_counters/out_of_sequence", ""}, {port + "hw_counters/packet_seq_err", "99999999999999999999"}});
  one("congestion", Severity::note, "np_cnp_sent 77", "", {{port + "hw_counters/np_cnp_sent", "77"}});
  one("errors", Severity::warning, "port_rcv_errors 3, rail0 rx_crc_errors 9", "mlxlink",
      {{port + "counters/port_rcv_errors", "3"}, {rail0 + "statistics/rx_crc_errors", "9"}});
  one("errors", Severity::warning, "rail0 rx_crc_errors 9", "",
      {{port + "counters/port_rcv_errors", "a few"}, {rail0 + "statistics/rx_crc_errors", "9"}});
}

TEST(Check, WhatNoFileHolds) {
  const Machine machine;
  machine.mode(0600);
  expect(of(machine.check(), "uverbs0"), Severity::warning, "0600", "udev");
  machine.add_gpu();
  machine.root.write("proc/driver/nvidia/version", "Open Kernel Module");
  machine.root.write("proc/sys/kernel/osrelease", "6.1.0");
  rdma::Places places = machine.places();
  places.variables["NCCL_DMABUF_ENABLE"] = "0";
  expect(of(rdma::check(rdma::read_system(places.sysfs), places), "GPUDirect"), Severity::warning,
         "NCCL_DMABUF_ENABLE=0");
  machine.root.write(machine.port + "state", "1: DOWN");
  EXPECT_EQ(all(machine.check()).find("MTU"), std::string::npos) << "a port that is down has no MTU to judge";
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

TEST(Check, MtuFromVerbs) {
  const Machine machine;
  rdma::System system = rdma::read_system(machine.root / "sys");
  system.devices.at(0).ports.at(0).active_mtu = 1024;
  system.devices.at(0).ports.at(0).max_mtu = 4096;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::warning, "1024 of 4096", "ip link set rail0");
  system.devices.at(0).ports.at(0).link_layer = rdma::LinkLayer::infiniband;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::warning, "1024 of 4096", "partitions.conf");
  system.devices.at(0).ports.at(0).active_mtu = 4096;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::fine, "4096 of 4096");
}

// What is advised of a recorded node, or of a Machine: "NCCL_CROSS_NIC" -> the finding.
class Advice : public ::testing::Test {
 protected:
  Finding advised(const std::string& what) const {
    return of(rdma::advice(rdma::read_system(places_.sysfs), places_), what);
  }
  void on(const std::string& tree, const std::string& more = "") {
    tree_.reset(new Tree(Tree::load(tree)));
    tree_->add(more);
    places_ = {tree_->sys(), "/dev", tree_->root() / "proc", {}};
  }
  std::unique_ptr<Tree> tree_;
  rdma::Places places_;
};

TEST_F(Advice, RailsByPciDistance) {
  on("eight-hcas");
  const Finding rails = advised("rails");
  expect(rails, Severity::warning, "GPU 0000:0d:00.0 - mlx5_0, GPU 0000:1d:00.0 - mlx5_1,");
  EXPECT_SAYS(rails.seen, "GPU 0000:3d:00.0 - mlx5_0/mlx5_1/mlx5_2 (NUMA node)");
  EXPECT_EQ(
      rails.fix,
      "GPU 0000:3d:00.0 shares no PCI switch with an RDMA device, unlike the others: its traffic takes a longer path\n"
      "mlx5_3 shares no PCI switch with a GPU, unlike the others: its traffic takes a longer path");
  on("infiniband");  // no GPU
  EXPECT_EQ(all(rdma::advice(rdma::read_system(places_.sysfs), places_)).find("rails"), std::string::npos);
}

TEST_F(Advice, GdrLevelByDistance) {
  on("mlx5-pairs");
  expect(advised("GDR_LEVEL"), Severity::fine, "not set", "on another CPU");
  on("mlx5-pairs",
     "F 444 /sys/bus/pci/devices/0000:af:00.0/class = 0x020000\\n");  // that GPU is none
  expect(advised("GDR_LEVEL"), Severity::fine, "not set", "below its PCI switch");
  places_.variables["NCCL_NET_GDR_LEVEL"] = "SYS";
  expect(advised("GDR_LEVEL"), Severity::note, "SYS");
  on("eight-hcas");
  expect(advised("GDR_LEVEL"), Severity::note, "not set", "share only the CPU");
  EXPECT_EQ(advised("GDR_LEVEL").expected, "PHB");
}

TEST_F(Advice, ByFabric) {
  on("bond-12");
  expect(advised("CROSS_NIC"), Severity::fine, "not set", "one RDMA device");
  expect(advised("QPS"), Severity::note, "not set", "one link of a bond");
  on("two-indices");
  expect(advised("CROSS_NIC"), Severity::fine, "not set", "2 by itself");
  expect(advised("QPS"), Severity::fine, "not set", "UDP port");
  expect(advised("ADAPTIVE"), Severity::fine, "not set", "0 by itself on RoCE");
  places_.variables = {{"NCCL_CROSS_NIC", "1"}, {"NCCL_IB_ADAPTIVE_ROUTING", "1"}};
  expect(advised("CROSS_NIC"), Severity::note, "1", "2 by itself");
  expect(advised("ADAPTIVE"), Severity::note, "1");
  on("infiniband");
  expect(advised("ADAPTIVE"), Severity::fine, "not set", "1 by itself on InfiniBand");
  expect(advised("QPS"), Severity::fine, "not set", "subnet manager");
  expect(advised("NCCL_IB_SL"), Severity::fine, "not set", "ask the administrator");
  on("no-device");
  EXPECT_TRUE(rdma::advice(rdma::read_system(places_.sysfs), places_).empty());
}

TEST_F(Advice, TrafficClass) {
  on("mlx5-pairs");
  expect(advised("NCCL_IB_TC"), Severity::note, "not set", "106");
  on("mlx5-pairs", "F 444 /sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos = 104\\n");
  expect(advised("NCCL_IB_TC"), Severity::note, "rdma_cm with 104");
  on("mlx5-pairs", "F 444 /sys/class/infiniband/mlx5_0/tc/1/traffic_class = Global tclass=96\\n");
  expect(advised("NCCL_IB_TC"), Severity::fine, "mlx5_0 has Global tclass=96");
  places_.variables["NCCL_IB_TC"] = "106";
  expect(advised("NCCL_IB_TC"), Severity::fine, "106; ");
}

TEST_F(Advice, NetworkPlugin) {
  on("mlx5-pairs");
  expect(advised("plugin"), Severity::fine, "none found");
  places_.variables["NCCL_NET_PLUGIN"] = "aws-ofi";
  expect(advised("plugin"), Severity::warning, "NCCL_NET_PLUGIN=aws-ofi is not found");
  on("mlx5-pairs",
     "F 444 /opt/ofi/lib/libnccl-net-aws-ofi.so = x\nF 444 /opt/ofi/lib/libnccl-net.so = x\n"
     "F 444 /etc/ld.so.conf.d/ofi.conf = # of Libfabric\\n/opt/ofi/lib\\n");
  expect(advised("plugin"), Severity::note, "/opt/ofi/lib/libnccl-net.so", "in place of its own network code");
  places_.variables["NCCL_NET_PLUGIN"] = "aws-ofi";
  expect(advised("plugin"), Severity::note, "/opt/ofi/lib/libnccl-net-aws-ofi.so");
  places_.variables["NCCL_NET_PLUGIN"] = "none";
  expect(advised("plugin"), Severity::fine, "none, by NCCL_NET_PLUGIN");
  places_.variables["NCCL_NET_PLUGIN"] = (tree_->root() / "opt/ofi/lib/libnccl-net.so").string();
  expect(advised("plugin"), Severity::note, tree_->root().string().substr(0, 20));
  on("mlx5-pairs", "F 444 /elsewhere/libnccl-net.so = x\n");
  places_.variables["LD_LIBRARY_PATH"] = "relative::/no/such:" + (tree_->root() / "elsewhere").string();
  expect(advised("plugin"), Severity::note, tree_->root().string().substr(0, 20));
}

#ifdef PATH_rdma_tune

Result run_check(const Machine& machine, const std::vector<std::string>& more = {}) {
  std::vector<std::string> argv{
      PATH_rdma_tune,       "check", "--sysfs", machine.root / "sys", "--dev", machine.root / "dev", "--proc",
      machine.root / "proc"};
  argv.insert(argv.end(), more.begin(), more.end());
  return multinode::testing::run(argv, {});
}

TEST(CheckProgram, StatusSaysWhetherSomethingIsBad) {
  const Machine machine;
  const Result fine = run_check(machine);
  EXPECT_EQ(fine.status, 0) << fine.all();
  EXPECT_SAYS(fine.out, "\n0 bad, 0 warnings, 0 not seen\n");
  machine.root.write("proc/self/limits", Machine::limits("65536"));
  const Result bad = run_check(machine, {"--json", machine.root / "check.json"});
  EXPECT_EQ(bad.status, 1);
  EXPECT_SAYS(bad.out, "BAD: memlock: 65536 bytes; expected: unlimited\n    ulimit -l unlimited");
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
  EXPECT_SAYS(result.out, "nothing to check");
}

#endif

}  // namespace check_test
