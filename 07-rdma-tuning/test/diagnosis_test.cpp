// What `rdma_tune check` says of trees that stand for machines with a fault.
#include "rdma_tune/diagnosis.hpp"

#include "tree.hpp"

#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

namespace diagnosis_test {

namespace fs = std::filesystem;
using multinode::testing::Result;
using rdma::Diagnosis;
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
F 444 /sys/class/net/rail0/statistics/rx_crc_errors = 0\n
F 444 /sys/class/infiniband_verbs/uverbs0/ibdev = mlx5_0\n
F 444 /sys/module/ib_core/parameters/netns_mode = Y\n
F 666 /dev/infiniband/uverbs0 = x
F 444 /proc/self/status = Name:\trdma_tune\nCapEff:\t0000000000000000\n
)" + limits("unlimited");
// Below the same bridge as the card.
const std::string gpu = "gpu pci0000:3a/0000:3a:00.0/0000:3c:00.0 0\n";

struct Machine : Tree {
  explicit Machine(const std::string& more = "") : Tree(machine + more) {
    if (const fs::path uverbs = *this / "dev/infiniband/uverbs0"; fs::is_regular_file(uverbs))
      fs::permissions(uverbs, fs::perms(0666));
  }
  rdma::Places places() const { return {sys(), *this / "dev", *this / "proc", {}}; }
  std::vector<Diagnosis> diagnose() const { return rdma::diagnose(rdma::read_system(sys()), places()); }
};

std::string all(const std::vector<Diagnosis>& diagnoses) {
  std::string text;
  for (const Diagnosis& one : diagnoses)
    text += text_of(one.severity) + ": " + one.what + ": " + one.seen + "; " + one.expected + "; " + one.fix + "\n";
  return text;
}

// The one whose `what` contains the word; fails the test unless there is exactly one.
Diagnosis of(const std::vector<Diagnosis>& diagnoses, const std::string& word) {
  std::vector<Diagnosis> found;
  for (const Diagnosis& one : diagnoses)
    if (one.what.find(word) != std::string::npos) found.push_back(one);
  EXPECT_EQ(found.size(), 1u) << word << " in\n" << all(diagnoses);
  return found.empty() ? Diagnosis{} : found.front();
}

void expect(const Diagnosis& one, Severity severity, const std::string& seen, const std::string& fix = "") {
  EXPECT_EQ(text_of(one.severity), text_of(severity)) << one.what << ": " << one.seen;
  EXPECT_SAYS(one.seen, seen) << one.what << ": " << one.seen;
  EXPECT_SAYS(one.fix, fix) << one.what << ": " << one.fix;
  if (severity == Severity::bad || severity == Severity::warning) {
    EXPECT_FALSE(one.fix.empty()) << one.what;
    EXPECT_FALSE(one.expected.empty()) << one.what;
  }
}

TEST(Diagnosis, AMachineWithNothingWrong) {
  const Machine machine;
  const auto diagnoses = machine.diagnose();
  for (const Diagnosis& one : diagnoses) EXPECT_EQ(one.severity, Severity::fine) << all({one});
  expect(of(diagnoses, "ports"), Severity::fine, "all active");
  expect(of(diagnoses, "memlock"), Severity::fine, "unlimited");
  expect(of(diagnoses, "uverbs0"), Severity::fine, "mode 0666");
  expect(of(diagnoses, "namespace"), Severity::fine, "shared mode");
  expect(of(diagnoses, "GPUDirect"), Severity::fine, "no GPU");
  expect(of(diagnoses, "MTU"), Severity::fine, "4096");
  expect(of(diagnoses, "losses"), Severity::fine, "none");
  expect(of(diagnoses, "errors"), Severity::fine, "none");
}

TEST(Diagnosis, NoDeviceNothingToCheck) {
  EXPECT_EQ(all(Machine("X /sys/class/infiniband\nX /dev/infiniband").diagnose()), "");
  // The host's /dev with another namespace's sysfs.
  expect(of(Machine("X /sys/class/infiniband").diagnose(), "RDMA devices"), Severity::bad, "none here, but",
         "rdma dev set");
}

TEST(Diagnosis, EachFault) {
  const std::string port = "F 444 /sys/class/infiniband/mlx5_0/ports/1/", rail0 = "F 444 /sys/class/net/rail0/";
  const std::string driver = "F 444 /proc/driver/nvidia/version = NVRM version: NVIDIA UNIX ",
                    open_module = driver + "Open Kernel Module for x86_64  570.1\n",
                    kernel = "F 444 /proc/sys/kernel/osrelease = ",
                    second_card = "card pci0000:5a/0000:5a:00.0/0000:5b:00.0 0 mlx5_1 InfiniBand ib1 1 100 Gb/sec\n",
                    capabilities = "F 444 /proc/self/status = CapEff:\\t";
  const struct {
    const char* what;
    Severity severity;
    const char *seen, *fix;
    std::string lines;  // that make the fault
  } cases[] = {
      {"memlock", Severity::bad, "8388608 bytes", "ulimit -l unlimited", limits("8388608")},
      {"protocol", Severity::bad, "iWARP", "roce_ena=1", "F 444 /sys/class/infiniband/mlx5_0/node_type = 4: RNIC\\n"},
      {"losses", Severity::warning, "out_of_sequence 7", "dcb pfc set",
       "F 444 /sys/class/infiniband/mlx5_0/device/vendor = 0x14e4\\n\n" + port + "hw_counters/out_of_sequence = 7\\n"},
      {"GPUDirect", Severity::unknown, "GPUs not of NVIDIA", "PCI_P2PDMA",
       gpu + "F 444 /sys/bus/pci/devices/0000:3c:00.0/vendor = 0x1002\\n"},
      {"memlock", Severity::warning, "4294967296 bytes", "", limits("4294967296")},
      {"memlock", Severity::bad, "8388608 bytes", "", limits("8388608") + capabilities + "000001ffffffbfff"},
      {"memlock", Severity::note, "CAP_IPC_LOCK", "", limits("8388608") + capabilities + "0000000000004000"},
      {"memlock", Severity::unknown, "Max locked memory", "", "X /proc/self/limits"},
      {"uverbs0", Severity::bad, "not there", "--device=/dev/infiniband/uverbs0", "X /dev/infiniband/uverbs0"},
      {"uverbs0", Severity::bad, "Is a directory", "", "X /dev/infiniband/uverbs0\nD /dev/infiniband/uverbs0"},
      {"uverbs", Severity::bad, "no entry", "modprobe ib_uverbs", "X /sys/class/infiniband_verbs"},
      {"ports", Severity::bad, "mlx5_0:1 DOWN", "", port + "state = 1: DOWN"},
      {"link without", Severity::bad, "mlx5_0:1 INIT", "sminfo", port + "state = 2: INIT"},
      {"ports", Severity::note, "mlx5_1:1 DOWN", "",
       second_card + "F 444 /sys/class/infiniband/mlx5_1/ports/1/state = 1: DOWN"},
      {"namespace", Severity::bad, "exclusive mode", "rdma dev set mlx5_0 netns",
       "F 444 /sys/module/ib_core/parameters/netns_mode = N\nX /sys/class/net/rail0"},
      {"GPUDirect", Severity::warning, "not NVIDIA's open kernel module", "modprobe nvidia_peermem",
       driver + "x86_64 Kernel Module  550.54\n" + kernel + "6.1.0-56-amd64"},
      {"GPUDirect", Severity::fine, "a GB10 (DGX Spark) has none", "",
       "F 444 /sys/class/infiniband/mlx5_0/board_id = NVD0000000087"},
      {"GPUDirect", Severity::fine, "a GB10 (DGX Spark) has none", "",
       "F 444 /proc/driver/nvidia/gpus/0000:3c:00.0/information = Model: NVIDIA GB10\\n"},
      {"GPUDirect", Severity::fine, "dma-buf", "", open_module + kernel + "6.1.0-56-amd64"},
      {"GPUDirect", Severity::warning, "before 5.12", "", open_module + kernel + "5.4.0-100-generic"},
      {"GPUDirect", Severity::fine, "nvidia_peermem is loaded", "", "D /sys/module/nvidia_peermem"},
      {"MTU", Severity::warning, "1024", "ip link set rail0 mtu 9000", rail0 + "mtu = 2143"},
      {"MTU", Severity::warning, "2048", "", rail0 + "mtu = 2144"},
      {"MTU", Severity::warning, "256", "", rail0 + "mtu = 600"},
      {"MTU", Severity::fine, "4096", "", rail0 + "mtu = 4192"},
      {"MTU", Severity::unknown, "sysfs does not show it", "", port + "link_layer = InfiniBand"},
      {"losses", Severity::warning, "out_of_sequence 5000", "mlnx_qos", port + "hw_counters/out_of_sequence = 5000"},
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
    expect(of(Machine(gpu + lines).diagnose(), what), severity, seen, fix);
  }
}

TEST(Diagnosis, WhatNoFileHolds) {
  Machine machine(gpu +
                  "F 444 /proc/driver/nvidia/version = Open Kernel Module\n"
                  "F 444 /proc/sys/kernel/osrelease = 6.1.0");
  fs::permissions(machine / "dev/infiniband/uverbs0", fs::perms(0600));
  expect(of(machine.diagnose(), "uverbs0"), Severity::warning, "0600", "udev");
  rdma::Places places = machine.places();
  places.variables["NCCL_DMABUF_ENABLE"] = "0";
  expect(of(rdma::diagnose(rdma::read_system(places.sysfs), places), "GPUDirect"), Severity::warning,
         "NCCL_DMABUF_ENABLE=0");
  machine.add("F 444 /sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN");
  EXPECT_EQ(all(machine.diagnose()).find("MTU"), std::string::npos) << "a port that is down has no MTU to judge";
}

Result run_check(const Machine& machine) {
  return multinode::testing::run({PATH_rdma_tune, "check", "--sysfs", machine.sys()});
}

TEST(Diagnosis, StatusSaysWhetherSomethingIsBad) {
  const Result fine = run_check(Machine());
  EXPECT_EQ(fine.status, 0) << fine.all();
  EXPECT_SAYS(fine.out, "\n0 bad, 0 warnings, 0 not seen\n");
  const Result bad = run_check(Machine(limits("65536")));
  EXPECT_EQ(bad.status, 1);
  EXPECT_SAYS(bad.out, "BAD: memlock: 65536 bytes; expected: unlimited\n    ulimit -l unlimited");
  EXPECT_SAYS(bad.out, "\n1 bad, 0 warnings, 0 not seen\n");
  const Result nothing = run_check(Machine("X /sys/class/infiniband\nX /dev/infiniband"));
  EXPECT_EQ(nothing.status, 3);
  EXPECT_SAYS(nothing.out, "nothing to check");
}

}  // namespace diagnosis_test
