// The probes, on made-up file trees in place of "/".
#include "explore/probes.hpp"

#include <multinode/node/devices.hpp>
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

json read(const TemporaryFolder& tree, const char* member) { return explore::read_node({}, tree.path()).at(member); }

TEST(Rdma, EveryPortOfEveryDevice) {
  TemporaryFolder tree;
  EXPECT_EQ(read(tree, "rdma"), json::array());
  const std::string device = "sys/class/infiniband/mlx5_0";
  tree.write(device + "/fw_ver", "28.39.1002");
  tree.write(device + "/ports/1/state", "4: ACTIVE");
  tree.write(device + "/ports/1/rate", "100 Gb/sec (4X EDR)");
  tree.write(device + "/ports/1/link_layer", "Ethernet");
  tree.write(device + "/ports/1/gid_attrs/ndevs/0", "eth0");
  tree.write("sys/class/infiniband/rxe0/fw_ver", "");                                     // soft-RoCE has none
  std::filesystem::create_directories(tree / "sys/class/infiniband/rxe0/ports/1/state");  // can be opened, not read
  tree.write("sys/class/infiniband/rxe0/ports/2/state", "1: DOWN");
  const auto of_rxe0 = [](const char* port, const json& state) {
    return json{{"device", "rxe0"},      {"port", port},         {"state", state},     {"rate", nullptr},
                {"link_layer", nullptr}, {"interface", nullptr}, {"firmware", nullptr}};
  };
  EXPECT_EQ(read(tree, "rdma"), (json{{{"device", "mlx5_0"},
                                       {"port", "1"},
                                       {"state", "ACTIVE"},
                                       {"rate", "100 Gb/sec (4X EDR)"},
                                       {"link_layer", "Ethernet"},
                                       {"interface", "eth0"},
                                       {"firmware", "28.39.1002"}},
                                      of_rxe0("1", nullptr),
                                      of_rxe0("2", "DOWN")}));
}

TEST(Interfaces, SpeedMayBeUnknown) {
  TemporaryFolder tree;
  for (const auto& [name, speed] : {std::pair("eth0", "100000"), {"eth1", "-1"}, {"eth2", "fast"}}) {
    const std::string folder = std::string("sys/class/net/") + name;
    tree.write(folder + "/operstate", "up");
    tree.write(folder + "/mtu", "9000");
    tree.write(folder + "/speed", speed);
  }
  std::filesystem::create_directories(tree / "sys/class/net/eth3/speed");  // of a link that is down: cannot be read
  tree.write("sys/class/net/eth3/mtu", "1500");
  tree.write("sys/class/net/bonding_masters", "bond0");
  const auto found =
      multinode::interfaces(tree / "sys", {{"eth0", {"10.0.0.3/24", "fd00::3/64"}}, {"veth", {"::2/64"}}});
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].speed_mbit, 100000);
  EXPECT_EQ(found[0].addresses, (std::vector<std::string>{"10.0.0.3/24", "fd00::3/64"}));
  for (const std::size_t i : {1u, 2u, 3u, 4u}) EXPECT_FALSE(found[i].speed_mbit) << found[i].name;
  EXPECT_FALSE(found[4].state);  // sysfs shows another network namespace
  const json of_eth0 = read(tree, "network").at(0);
  EXPECT_EQ(of_eth0.at("state"), "up");
  EXPECT_EQ(of_eth0.at("mtu"), 9000);
}

TEST(Gpus, DriverAndDevicesFromItsFiles) {
  TemporaryFolder tree;
  EXPECT_EQ(read(tree, "gpus").at("none_because"), "NVIDIA's driver is not loaded");
  tree.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
             "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)");
  EXPECT_EQ(read(tree, "gpus").at("driver"), "535.104.05");
  tree.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build  (root@b)");
  EXPECT_EQ(read(tree, "gpus").at("driver"), "570.86");
  tree.write("proc/driver/nvidia/gpus/0000:17:00.0/information",
             "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t GPU-1a2b\nVideo BIOS: \t 96.00");
  std::filesystem::create_directories(tree / "proc/driver/nvidia/gpus/0000:65:00.0");
  const std::vector<multinode::Gpu> gpus = multinode::gpus_of_driver(tree.path()).devices;
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name + ", " + gpus[0].uuid + ", " + gpus[0].pci, "NVIDIA H100 80GB HBM3, GPU-1a2b, 0000:17:00.0");
  EXPECT_EQ(gpus[1].name + ", " + gpus[1].uuid + ", " + gpus[1].pci, "unknown, unknown, 0000:65:00.0");
}

std::vector<std::string> marks(const TemporaryFolder& tree, const multinode::Environment& environment) {
  std::vector<std::string> found;
  const json container = explore::read_node(environment, tree.path()).at("container");
  for (const json& mark : container)
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

TEST(Versions, HaveKernelAndDistribution) {
  TemporaryFolder tree;
  tree.write("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"");
  const json versions = read(tree, "versions");
  EXPECT_EQ(versions["system"], "Debian GNU/Linux 12 (bookworm)");
  for (const char* name : {"kernel", "libc", "program"}) EXPECT_TRUE(versions.contains(name)) << name;
}

TEST(Required, FoundOrWhyNot) {
  TemporaryFolder tree;
  tree.write("bin/tool", "");
  std::filesystem::permissions(tree / "bin/tool", std::filesystem::perms::owner_all);
  tree.write("bin/notes", "");
  const std::string bin = tree / "bin";
  explore::Required required;
  required.files = {bin + "/tool", bin + "/absent"};
  required.commands = {"tool", "notes", "absent"};
  required.libraries = {"libc.so.6", "libmultinode-absent.so.1"};
  const json all = explore::find_required(required, "/nowhere:" + bin);
  std::vector<bool> found;
  for (const json& thing : all) {
    found.push_back(!thing["found"].is_null());
    EXPECT_NE(thing["found"].is_null(), thing["problem"].is_null()) << thing;
  }
  EXPECT_EQ(found, (std::vector<bool>{true, false, true, false, false, true, false}));
  EXPECT_EQ(all[1]["problem"], "No such file or directory");
  EXPECT_EQ(all[2]["found"], bin + "/tool");
  EXPECT_EQ(all[3]["problem"], "it is not executable (chmod +x?)");
  EXPECT_EQ(all[4]["problem"], "not found on the PATH");
  EXPECT_EQ(all[6]["problem"], "cannot open shared object file: No such file or directory");
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

// nproc obeys the CPU set, and OpenMP's variables as the runtimes do, up to a list's first number.
TEST(Threads, AreThoseOfOpenMp) {
  const int last = multinode::allowed_cpus().back();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(multinode::allowed_cpus(), std::vector<int>{last});
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
