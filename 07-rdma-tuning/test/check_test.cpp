// What `rdma_tune check` and `advise` find in trees that stand for machines with a fault.
#include "rdma_tune/check.hpp"

#include "tree.hpp"

#include <test/support/program_test.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace check_test {

namespace fs = std::filesystem;
using multinode::testing::Result;
using rdma::CheckResult;
using rdma::Severity;
using rdma::testing::Tree;

std::string limits(const std::string& memlock) {
  return "F 444 /proc/self/limits = Limit  Soft Limit  Hard Limit  Units\\nMax processes  1000  1000  processes\\n"
         "Max locked memory  " +
         memlock + "  " + memlock + "  bytes\\n\n";
}

// A machine with one RoCE card, rail0 at MTU 9000, and no fault. The tests add faults.
const std::string machine = R"(include ipv4-link-local
F 444 /sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence = 0\n
F 444 /sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err = 0\n
F 444 /sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors = 0\n
F 444 /sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets = 1000000\n
F 444 /sys/class/net/rail0/statistics/rx_crc_errors = 0\n
L /sys/bus/pci/devices/0000:3a:00.0 -> ../../../devices/pci0000:3a/0000:3a:00.0
F 444 /sys/class/infiniband_verbs/uverbs0/ibdev = mlx5_0\n
F 444 /sys/module/ib_core/parameters/netns_mode = Y\n
F 666 /dev/infiniband/uverbs0 = x
F 444 /proc/self/status = Name:\trdma_tune\nCapEff:\t0000000000000000\n
L /proc/self/ns/net -> net:[4026531840]
L /proc/1/ns/net -> net:[4026531840]
)" + limits("unlimited");
// Below the same bridge as the card.
const std::string gpu = "gpu pci0000:3a/0000:3a:00.0/0000:3c:00.0 0\n";

struct Machine : Tree {
  explicit Machine(const std::string& more = "") : Tree(machine + more) {
    if (const fs::path uverbs = *this / "dev/infiniband/uverbs0"; fs::is_regular_file(uverbs))
      fs::permissions(uverbs, fs::perms(0666));
  }
  rdma::Places places() const { return {sys(), *this / "dev", *this / "proc", {}}; }
  std::vector<CheckResult> check() const { return rdma::check(rdma::read_system(sys()), places()); }
};

std::string all(const std::vector<CheckResult>& findings) {
  std::string text;
  for (const CheckResult& finding : findings)
    text += text_of(finding.severity) + ": " + finding.what + ": " + finding.seen + "; " + finding.expected + "; " +
            finding.fix + "\n";
  return text;
}

// The finding whose `what` contains the word; fails the test unless there is exactly one.
CheckResult of(const std::vector<CheckResult>& findings, const std::string& word) {
  std::vector<CheckResult> found;
  for (const CheckResult& finding : findings)
    if (finding.what.find(word) != std::string::npos) found.push_back(finding);
  EXPECT_EQ(found.size(), 1u) << word << " in\n" << all(findings);
  return found.empty() ? CheckResult{} : found.front();
}

void expect(const CheckResult& finding, Severity severity, const std::string& seen, const std::string& fix = "") {
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
  for (const CheckResult& finding : findings) EXPECT_EQ(finding.severity, Severity::fine) << all({finding});
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
  EXPECT_EQ(all(Machine("X /sys/class/infiniband\nX /dev/infiniband").check()), "");
  // The host's /dev with another namespace's sysfs.
  expect(of(Machine("X /sys/class/infiniband").check(), "RDMA devices"), Severity::bad, "none here, but",
         "rdma dev set");
}

TEST(Check, EachFault) {
  const std::string port = "F 444 /sys/class/infiniband/mlx5_0/ports/1/", rail0 = "F 444 /sys/class/net/rail0/";
  const std::string driver = "F 444 /proc/driver/nvidia/version = NVRM version: NVIDIA UNIX ",
                    open_module = driver + "Open Kernel Module for x86_64  570.1\n",
                    kernel = "F 444 /proc/sys/kernel/osrelease = ",
                    capabilities = "F 444 /proc/self/status = CapEff:\\t";
  const struct {
    const char* what;
    Severity severity;
    const char *seen, *fix;
    std::string lines;  // that make the fault
  } cases[] = {
      {"memlock", Severity::bad, "8388608 bytes", "ulimit -l unlimited", limits("8388608")},
      {"memlock", Severity::warning, "4294967296 bytes", "", limits("4294967296")},
      {"memlock", Severity::bad, "8388608 bytes", "", limits("8388608") + capabilities + "000001ffffffbfff"},
      {"memlock", Severity::note, "CAP_IPC_LOCK", "", limits("8388608") + capabilities + "0000000000004000"},
      {"memlock", Severity::unknown, "Max locked memory", "", "F 444 /proc/self/limits = nothing of the kind"},
      {"memlock", Severity::unknown, "Max locked memory", "", "X /proc/self/limits"},
      {"uverbs0", Severity::bad, "not there", "--device=/dev/infiniband/uverbs0", "X /dev/infiniband/uverbs0"},
      {"uverbs0", Severity::bad, "Is a directory", "", "X /dev/infiniband/uverbs0\nD /dev/infiniband/uverbs0"},
      {"uverbs", Severity::bad, "no entry", "modprobe ib_uverbs", "X /sys/class/infiniband_verbs"},
      {"ports", Severity::bad, "mlx5_0:1 DOWN", "", port + "state = 1: DOWN"},
      {"namespace", Severity::bad, "exclusive mode", "rdma dev set mlx5_0 netns",
       "F 444 /sys/module/ib_core/parameters/netns_mode = N\nX /sys/class/net/rail0"},
      {"namespace", Severity::fine, "not process 1's", "", "L /proc/1/ns/net -> net:[4026532000]"},
      {"namespace", Severity::fine, "not readable", "", "X /proc/1/ns/net"},
      {"GPUDirect", Severity::warning, "not NVIDIA's open kernel module", "modprobe nvidia_peermem",
       driver + "x86_64 Kernel Module  550.54\n" + kernel + "6.1.0-56-amd64"},
      {"GPUDirect", Severity::fine, "dma-buf", "", open_module + kernel + "6.1.0-56-amd64"},
      {"GPUDirect", Severity::warning, "before 5.12", "", open_module + kernel + "5.4.0-100-generic"},
      {"GPUDirect", Severity::fine, "nvidia_peermem is loaded", "", "D /sys/module/nvidia_peermem"},
      {"MTU", Severity::warning, "1024, by rail0's 1500", "ip link set rail0 mtu 9000", rail0 + "mtu = 1500"},
      {"MTU", Severity::warning, "1024, by rail0's 2143", "", rail0 + "mtu = 2143"},
      {"MTU", Severity::warning, "2048, by rail0's 2144", "", rail0 + "mtu = 2144"},
      {"MTU", Severity::warning, "2048, by rail0's 4191", "", rail0 + "mtu = 4191"},
      {"MTU", Severity::warning, "256, by rail0's 600", "", rail0 + "mtu = 600"},
      {"MTU", Severity::fine, "4096", "", rail0 + "mtu = 4192"},
      {"losses", Severity::warning, "out_of_sequence 5000; 0.005 of the packets", "mlnx_qos",
       port + "hw_counters/out_of_sequence = 5000"},
      {"losses", Severity::note, "out_of_sequence 5000", "",
       port + "hw_counters/out_of_sequence = 5000\n" + port + "counters/port_rcv_packets = 900000000000"},
      {"losses", Severity::unknown, "no counter", "",
       port + "hw_counters/out_of_sequence = \n" + port + "hw_counters/packet_seq_err = 99999999999999999999"},
      {"congestion", Severity::note, "np_cnp_sent 77", "", port + "hw_counters/np_cnp_sent = 77"},
      {"errors", Severity::warning, "port_rcv_errors 3, rail0 rx_crc_errors 9", "mlxlink",
       port + "counters/port_rcv_errors = 3\n" + rail0 + "statistics/rx_crc_errors = 9"},
      {"errors", Severity::warning, "rail0 rx_crc_errors 9", "",
       port + "counters/port_rcv_errors = a few\n" + rail0 + "statistics/rx_crc_errors = 9"},
  };
  for (const auto& [what, severity, seen, fix, lines] : cases) {
    SCOPED_TRACE(lines);
    expect(of(Machine(gpu + lines).check(), what), severity, seen, fix);
  }
}

TEST(Check, WhatNoFileHolds) {
  Machine machine(gpu +
                  "F 444 /proc/driver/nvidia/version = Open Kernel Module\n"
                  "F 444 /proc/sys/kernel/osrelease = 6.1.0");
  fs::permissions(machine / "dev/infiniband/uverbs0", fs::perms(0600));
  expect(of(machine.check(), "uverbs0"), Severity::warning, "0600", "udev");
  rdma::Places places = machine.places();
  places.variables["NCCL_DMABUF_ENABLE"] = "0";
  expect(of(rdma::check(rdma::read_system(places.sysfs), places), "GPUDirect"), Severity::warning,
         "NCCL_DMABUF_ENABLE=0");
  machine.add("F 444 /sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN");
  EXPECT_EQ(all(machine.check()).find("MTU"), std::string::npos) << "a port that is down has no MTU to judge";
}

// Configuration space: 4096 octets; its extended capabilities begin at 0x100, ACS is number 0x000d.
TEST(Check, AccessControlServices) {
  const Machine machine(gpu);
  expect(of(machine.check(), "ACS"), Severity::unknown, "0000:3a:00.0");
  const auto write = [&](std::string bytes) {
    std::ofstream out(machine.sys() / "bus/pci/devices/0000:3a:00.0/config", std::ios::binary | std::ios::trunc);
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
  write(space.substr(0, 64));  // what users other than root see
  expect(of(machine.check(), "ACS"), Severity::unknown, "not readable", "as root");
  write(space.substr(0, 256));  // a conventional bridge
  expect(of(machine.check(), "ACS"), Severity::fine, "none redirects");
  write("");
  expect(of(machine.check(), "ACS"), Severity::unknown, "not readable");
}

TEST(Check, MtuFromVerbs) {
  const Machine machine;
  rdma::System system = rdma::read_system(machine.sys());
  system.devices.at(0).ports.at(0).active_mtu = 1024;
  system.devices.at(0).ports.at(0).max_mtu = 4096;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::warning, "1024 of 4096", "ip link set rail0");
  system.devices.at(0).ports.at(0).link_layer = rdma::LinkLayer::infiniband;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::warning, "1024 of 4096", "partitions.conf");
  system.devices.at(0).ports.at(0).active_mtu = 4096;
  expect(of(rdma::check(system, machine.places()), "MTU"), Severity::fine, "4096 of 4096");
}

std::vector<CheckResult> advice(const Tree& tree, const multinode::Environment& variables = {}) {
  return rdma::advice(rdma::read_system(tree.sys()), {tree.sys(), "/dev", tree / "proc", variables});
}

TEST(Advice, EachSetting) {
  const std::string ofi =
      "mlx5-pairs\nF 444 /opt/ofi/lib/libnccl-net-aws-ofi.so = x\nF 444 /opt/ofi/lib/libnccl-net.so = x\n"
      "F 444 /etc/ld.so.conf.d/ofi.conf = # of Libfabric\\n/opt/ofi/lib\\n";
  const std::string one_gpu = "mlx5-pairs\nX /sys/bus/pci/devices/0000:af:00.0";
  const struct {
    std::string node;
    multinode::Environment variables;
    const char* what;
    Severity severity;
    const char *seen, *fix;
  } cases[] = {
      {"mlx5-pairs", {}, "GDR_LEVEL", Severity::fine, "not set", "on another CPU"},
      {one_gpu, {}, "GDR_LEVEL", Severity::fine, "not set", "below its PCI switch"},
      {one_gpu, {{"NCCL_NET_GDR_LEVEL", "SYS"}}, "GDR_LEVEL", Severity::note, "SYS", ""},
      {"eight-hcas", {}, "GDR_LEVEL", Severity::note, "not set", "share only the CPU"},
      {"bond-12", {}, "CROSS_NIC", Severity::fine, "not set", "one RDMA device"},
      {"two-indices", {}, "CROSS_NIC", Severity::fine, "not set", "the default, 2, keeps"},
      {"two-indices", {{"NCCL_CROSS_NIC", "1"}}, "CROSS_NIC", Severity::note, "1", "the default, 2, keeps"},
      {"two-indices", {}, "QPS", Severity::fine, "not set", "UDP port"},
      {"infiniband", {}, "QPS", Severity::fine, "not set", "subnet manager"},
      {"two-indices", {}, "ADAPTIVE", Severity::fine, "not set", "the default is 0 on RoCE"},
      {"two-indices", {{"NCCL_IB_ADAPTIVE_ROUTING", "1"}}, "ADAPTIVE", Severity::note, "1", ""},
      {"infiniband", {}, "ADAPTIVE", Severity::fine, "not set", "the default is 1 on InfiniBand"},
      {"mlx5-pairs", {}, "plugin", Severity::fine, "none found", ""},
      {"mlx5-pairs", {{"NCCL_NET_PLUGIN", "aws-ofi"}}, "plugin", Severity::warning, "=aws-ofi is not found", ""},
      {ofi, {}, "plugin", Severity::note, "/opt/ofi/lib/libnccl-net.so", "in place of its own network code"},
      {ofi, {{"NCCL_NET_PLUGIN", "aws-ofi"}}, "plugin", Severity::note, "/opt/ofi/lib/libnccl-net-aws-ofi.so", ""},
      {ofi, {{"NCCL_NET_PLUGIN", "none"}}, "plugin", Severity::fine, "none, by NCCL_NET_PLUGIN", ""},
  };
  for (const auto& [node, variables, what, severity, seen, fix] : cases) {
    SCOPED_TRACE(node);
    expect(of(advice(Tree::load(node), variables), what), severity, seen, fix);
  }
  EXPECT_TRUE(advice(Tree::load("no-device")).empty());
}

TEST(Advice, RailsByPciDistance) {
  const auto findings = advice(Tree::load("eight-hcas"));
  const CheckResult rails = of(findings, "rails");
  expect(rails, Severity::warning, "GPU 0000:0d:00.0 - mlx5_0, GPU 0000:1d:00.0 - mlx5_1,");
  EXPECT_SAYS(rails.seen, "GPU 0000:3d:00.0 - mlx5_0/mlx5_1/mlx5_2 (NUMA node)");
  EXPECT_EQ(
      rails.fix,
      "GPU 0000:3d:00.0 shares no PCI switch with an RDMA device, unlike the others: its traffic takes a longer path\n"
      "mlx5_3 shares no PCI switch with a GPU, unlike the others: its traffic takes a longer path");
  EXPECT_EQ(of(findings, "GDR_LEVEL").expected, "PHB");
  EXPECT_EQ(all(advice(Tree::load("infiniband"))).find("rails"), std::string::npos) << "that has no GPU";
}

TEST(Advice, APluginByItsPath) {
  const Tree tree("include mlx5-pairs\nF 444 /elsewhere/libnccl-net.so = x\n");
  const std::string folder = tree / "elsewhere";
  for (const auto& [name, value] : {std::pair("NCCL_NET_PLUGIN", folder + "/libnccl-net.so"),
                                    std::pair("LD_LIBRARY_PATH", "relative::/no/such:" + folder)})
    expect(of(advice(tree, {{name, value}}), "plugin"), Severity::note, folder.substr(0, 20));
}

Result run_check(const Machine& machine) {
  return multinode::testing::run({PATH_rdma_tune, "check", "--sysfs", machine.sys(), "--dev", machine / "dev", "--proc",
                                  machine / "proc", "--json", machine / "check.json"});
}

TEST(CheckProgram, StatusSaysWhetherSomethingIsBad) {
  const Result fine = run_check(Machine());
  EXPECT_EQ(fine.status, 0) << fine.all();
  EXPECT_SAYS(fine.out, "\n0 bad, 0 warnings, 0 not seen\n");
  const Machine machine(limits("65536"));
  const Result bad = run_check(machine);
  EXPECT_EQ(bad.status, 1);
  EXPECT_SAYS(bad.out, "BAD: memlock: 65536 bytes; expected: unlimited\n    ulimit -l unlimited");
  const auto json = nlohmann::json::parse(std::ifstream(machine / "check.json"));
  EXPECT_EQ(json["bad"], 1);
  EXPECT_EQ(std::ranges::count_if(json["findings"], [](const auto& one) { return one["severity"] == "BAD"; }), 1);
  const Result nothing = run_check(Machine("X /sys/class/infiniband\nX /dev/infiniband"));
  EXPECT_EQ(nothing.status, 0);
  EXPECT_SAYS(nothing.out, "nothing to check");
}

}  // namespace check_test
