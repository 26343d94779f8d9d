// The probes, on made-up file trees in place of "/".
#include "explore/probes.hpp"

#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>

#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sched.h>

#include <filesystem>

namespace explore_probe_test {

using multinode::testing::TemporaryFolder;
using nlohmann::json;

void add_rdma(TemporaryFolder& tree, const std::string& device, const std::string& state, const std::string& rate) {
  const std::string at = "sys/class/infiniband/" + device;
  tree.write(at + "/fw_ver", "28.39.1002");
  tree.write(at + "/ports/1/state", state);
  tree.write(at + "/ports/1/rate", rate);
  tree.write(at + "/ports/1/link_layer", "Ethernet");
  tree.write(at + "/ports/1/gid_attrs/ndevs/0", "eth-" + device);
}

TEST(Rdma, EveryPortOfEveryDevice) {
  TemporaryFolder tree;
  add_rdma(tree, "mlx5_0", "4: ACTIVE", "100 Gb/sec (4X EDR)");
  add_rdma(tree, "mlx5_1", "1: DOWN", "40 Gb/sec (4X QDR)");
  tree.write("sys/class/infiniband/mlx5_1/ports/2/state", "2: INIT");
  const json ports = explore::read_rdma(tree.path());
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_EQ(ports[0], (json{{"device", "mlx5_0"},
                            {"port", "1"},
                            {"state", "ACTIVE"},
                            {"rate", "100 Gb/sec (4X EDR)"},
                            {"link_layer", "Ethernet"},
                            {"interface", "eth-mlx5_0"},
                            {"firmware", "28.39.1002"}}));
  EXPECT_EQ(ports[1]["state"], "DOWN");
  EXPECT_EQ(ports[2]["port"], "2");
  EXPECT_EQ(ports[2]["state"], "INIT");
  EXPECT_EQ(ports[2]["rate"], nullptr);
}

TEST(Rdma, WhatIsMissingOrUnreadableIsUnknown) {
  TemporaryFolder tree;
  EXPECT_EQ(explore::read_rdma(tree.path()), json::array());
  tree.write("sys/class/infiniband/rxe0/fw_ver", "");  // soft-RoCE has none
  std::filesystem::create_directories(
      tree / "sys/class/infiniband/rxe0/ports/1/state");  // can be opened but not read, even by root
  std::filesystem::create_directories(tree / "sys/class/infiniband/rxe0/ports/1/link_layer");
  const json ports = explore::read_rdma(tree.path());
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_EQ(ports[0]["state"], nullptr);
  EXPECT_EQ(ports[0]["link_layer"], nullptr);
  EXPECT_EQ(ports[0]["firmware"], nullptr);
}

TEST(Interfaces, SpeedMayBeUnknown) {
  TemporaryFolder tree;
  const auto add = [&](const std::string& name, const std::string& speed) {
    tree.write("sys/class/net/" + name + "/operstate", "up");
    tree.write("sys/class/net/" + name + "/mtu", "9000");
    if (!speed.empty()) tree.write("sys/class/net/" + name + "/speed", speed);
  };
  add("eth0", "100000");
  add("eth1", "-1");
  add("eth2", "");
  std::filesystem::create_directories(tree /
                                      "sys/class/net/eth2/speed");  // a link that is down: reading it is an error
  add("eth3", "fast");
  tree.write("sys/class/net/bonding_masters", "bond0");
  const json interfaces = explore::read_interfaces(tree.path(), {{"eth0", {"10.0.0.3/24", "fd00::3/64"}}});
  ASSERT_EQ(interfaces.size(), 4u);
  EXPECT_EQ(interfaces[0], (json{{"name", "eth0"},
                                 {"state", "up"},
                                 {"speed_mbit", 100000},
                                 {"mtu", 9000},
                                 {"addresses", {"10.0.0.3/24", "fd00::3/64"}}}));
  for (const std::size_t i : {1u, 2u, 3u}) EXPECT_EQ(interfaces[i]["speed_mbit"], nullptr) << interfaces[i];
}

TEST(Gpus, DriverAndDevicesFromItsFiles) {
  TemporaryFolder tree;
  EXPECT_EQ(explore::nvidia_driver(tree.path()), "none");
  EXPECT_EQ(explore::gpus_of_driver(tree.path()), json::array());
  tree.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
             "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)");
  EXPECT_EQ(explore::nvidia_driver(tree.path()), "535.104.05");
  tree.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build  (root@b)");
  EXPECT_EQ(explore::nvidia_driver(tree.path()), "570.86");
  tree.write("proc/driver/nvidia/gpus/0000:17:00.0/information",
             "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t GPU-1a2b\nVideo BIOS: \t 96.00");
  std::filesystem::create_directories(tree / "proc/driver/nvidia/gpus/0000:65:00.0");
  EXPECT_EQ(explore::gpus_of_driver(tree.path()),
            (json{{{"name", "NVIDIA H100 80GB HBM3"}, {"uuid", "GPU-1a2b"}, {"pci", "0000:17:00.0"}},
                  {{"name", "unknown"}, {"uuid", "unknown"}, {"pci", "0000:65:00.0"}}}));
}

std::vector<std::string> marks(const TemporaryFolder& tree, const multinode::Environment& environment) {
  std::vector<std::string> found;
  for (const json& mark : explore::read_container(tree.path(), environment))
    found.push_back(mark["kind"].get<std::string>() + " " + mark["found"].get<std::string>());
  return found;
}

TEST(Container, EachTraceNamesItsSource) {
  using Marks = std::vector<std::string>;
  TemporaryFolder none, docker, podman, pod, enroot;
  none.write("proc/self/cgroup", "0::/user.slice/user-1000.slice");
  none.write("proc/self/mountinfo", "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw");
  EXPECT_EQ(marks(none, {{"PATH", "/docker/bin"}}), Marks{});
  EXPECT_EQ(marks(none, {{"SINGULARITY_NAME", "image.sif"}}), Marks{"singularity SINGULARITY_NAME"});
  EXPECT_EQ(marks(none, {{"CH_RUNNING", "Weird Al Yankovic"}}), Marks{"charliecloud CH_RUNNING"});
  EXPECT_EQ(marks(none, {{"container", "lxc"}}), Marks{"lxc container"});
  docker.write(".dockerenv", "");
  EXPECT_EQ(marks(docker, {}), Marks{"docker /.dockerenv"});
  podman.write("run/.containerenv", "engine=\"podman-4.3.1\"");
  EXPECT_EQ(marks(podman, {}), Marks{"podman /run/.containerenv"});
  pod.write("proc/self/cgroup", "0::/kubepods.slice/kubepods-pod7.slice/cri-containerd-9.scope");
  EXPECT_EQ(
      marks(pod, {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}}),
      (Marks{"kubernetes KUBERNETES_SERVICE_HOST", "kubernetes /proc/self/cgroup", "containerd /proc/self/cgroup"}));
  enroot.write("proc/self/mountinfo", "40 1 8:1 /var/lib/enroot/data/image / rw - ext4 /dev/sda1 rw");
  EXPECT_EQ(marks(enroot, {}), Marks{"enroot /proc/self/mountinfo"});
}

TEST(Memory, FromMeminfo) {
  TemporaryFolder tree;
  EXPECT_EQ(explore::read_memory(tree.path()), nullptr);
  tree.write("proc/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB");
  EXPECT_EQ(explore::read_memory(tree.path()), 16384 * 1024);
}

TEST(Versions, HaveKernelAndDistribution) {
  TemporaryFolder tree;
  EXPECT_FALSE(explore::read_versions(tree.path()).contains("system"));
  tree.write("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"");
  const json versions = explore::read_versions(tree.path());
  EXPECT_EQ(versions["system"], "Debian GNU/Linux 12 (bookworm)");
  for (const char* name : {"kernel", "libc", "program"}) EXPECT_TRUE(versions.contains(name)) << name;
}

TEST(Required, FoundOrWhyNot) {
  TemporaryFolder tree;
  tree.write("bin/tool", "");
  std::filesystem::permissions(tree / "bin/tool", std::filesystem::perms::owner_all);
  tree.write("bin/notes", "");
  std::filesystem::create_directories(tree / "bin/folder");
  const std::string bin = tree / "bin";
  explore::Required required;
  required.files = {bin + "/tool", bin + "/absent"};
  required.commands = {"tool", "notes", "folder", "absent", bin + "/tool", bin + "/absent"};
  required.libraries = {"libc.so.6", "libmultinode-absent.so.1"};
  const json all = explore::find_required(required, "/nowhere:" + bin);
  std::vector<bool> found;
  for (const json& thing : all) {
    found.push_back(!thing["found"].is_null());
    EXPECT_NE(thing["found"].is_null(), thing["problem"].is_null()) << thing;
  }
  EXPECT_EQ(found, (std::vector<bool>{true, false, true, false, false, false, true, false, true, false}));
  EXPECT_EQ(all[1]["problem"], "No such file or directory");
  EXPECT_EQ(all[2]["found"], bin + "/tool");
  EXPECT_EQ(all[5]["problem"], "not on the PATH");
  EXPECT_EQ(all[9]["problem"], "cannot open shared object file: No such file or directory");
}

TEST(Cpus, AllowedIsTheAffinity) {
  const std::vector<int> before = multinode::allowed_cpus();
  ASSERT_FALSE(before.empty());
  cpu_set_t all, one;
  CPU_ZERO(&all);
  for (const int cpu : before) CPU_SET(cpu, &all);
  CPU_ZERO(&one);
  CPU_SET(before.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(multinode::allowed_cpus(), std::vector<int>{before.back()});
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST(Cpus, CoresAndNumaNodesOfTheSet) {
  const std::string two_of_four = "numa:2 core:4 pu:2";  // CPUs 0-7 on node 0, 8-15 on node 1
  const json half = explore::read_cpu({0, 1, 2}, two_of_four);
  if (half["cores"].is_null()) GTEST_SKIP() << "built without hwloc";
  EXPECT_EQ(half["allowed"], "0-2");
  EXPECT_EQ(half["count"], 3);
  EXPECT_EQ(half["cores"], 2) << "one hyperthread of a core counts as that core";
  EXPECT_EQ(half["numa_nodes"], "0");
  EXPECT_EQ(half["machine"]["cpus"], 16);
  EXPECT_EQ(half["machine"]["cores"], 8);
  EXPECT_EQ(half["machine"]["numa_nodes"], 2);
  EXPECT_EQ(explore::read_cpu({7, 8}, two_of_four)["numa_nodes"], "0-1");
  EXPECT_EQ(explore::read_cpu({15}, two_of_four)["numa_nodes"], "1");
}

// nproc obeys OpenMP's variables as the runtimes do, up to a list's first number.
TEST(Threads, AreThoseOfOpenMp) {
  using Variables = std::map<std::string, std::string>;
  for (const Variables& set : {Variables{},
                               {{"OMP_NUM_THREADS", "1"}},
                               {{"OMP_NUM_THREADS", "3,1"}},
                               {{"OMP_NUM_THREADS", "999"}, {"OMP_THREAD_LIMIT", "7"}},
                               {{"OMP_NUM_THREADS", "many"}}}) {
    Variables environment = set;
    environment.insert({{"OMP_NUM_THREADS", ""}, {"OMP_THREAD_LIMIT", ""}});
    const multinode::testing::Result nproc = multinode::testing::run({"nproc"}, environment);
    const json predicted = explore::predict_threads({set.begin(), set.end()}, multinode::allowed_cpus().size());
    EXPECT_EQ(multinode::json_text(predicted.at("openmp")) + "\n", nproc.out) << multinode::json_text(set);
  }
}

}  // namespace explore_probe_test
