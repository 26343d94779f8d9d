// What node_check finds, with faults planted.
#include "../findings.hpp"
#include "../rates.hpp"

#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <tuple>

namespace findings_test {

using namespace node_check;
using multinode::testing::TemporaryFolder;
using namespace std::chrono_literals;

// Limits and devices.

TEST(NodeCheck, RdmaNeedsMemlock) {
  rlimit before{};
  getrlimit(RLIMIT_MEMLOCK, &before);
  rlimit low = before;
  low.rlim_cur = 65536;
  setrlimit(RLIMIT_MEMLOCK, &low);
  TemporaryFolder root;
  const auto memlock = [&] { return look_at_limits(root.path()).at(0); };
  EXPECT_EQ(memlock().ok, true);
  EXPECT_SAYS(memlock().why, "enough, because no RDMA device is here");
  root.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  EXPECT_EQ(memlock().ok, false);
  EXPECT_SAYS(memlock().why, "set memlock to unlimited");
  setrlimit(RLIMIT_MEMLOCK, &before);
}

// A machine's /sys/bus/pci/devices, with a folder for each driver.
class NodeCheckPci : public testing::Test {
 protected:
  void add(const std::string& address, const std::string& pci_class, const std::string& vendor,
           const std::string& driver) const {
    const std::string device = "bus/pci/devices/" + address;
    sysfs_.write(device + "/class", pci_class);
    sysfs_.write(device + "/vendor", vendor);
    if (driver.empty()) return;
    std::filesystem::create_directories(sysfs_ / ("bus/pci/drivers/" + driver));
    std::filesystem::create_symlink("../../../../bus/pci/drivers/" + driver, sysfs_ / (device + "/driver"));
  }
  Finding find(const std::string& what, const multinode::Gpus& gpus = {"CUDA", {{"0000:17:00.0"}}}) const {
    unsetenv("CUDA_VISIBLE_DEVICES");
    const Findings all = look_at_devices(sysfs_.path(), gpus);
    return *std::ranges::find(all, what, &Finding::what);
  }
  TemporaryFolder sysfs_;
};

// A GPU without a driver: self-test.
TEST_F(NodeCheckPci, CudaMustSeeAGpuThatHasItsDriver) {
  add("0000:02:00.0", "0x030000", "0x1a03", "");  // the screen of a server needs no driver
  EXPECT_EQ(find("pci_gpus").ok, std::nullopt);
  add("0000:17:00.0", "0x030200", "0x10de", "nvidia");
  EXPECT_EQ(find("pci_gpus").ok, true);
  EXPECT_SAYS(find("pci_gpus", {"CUDA"}).why, "1 GPUs on the PCI bus have a driver, and CUDA sees none: ");
}

TEST_F(NodeCheckPci, ANetworkInterfaceNeedsItsDriver) {
  add("0000:01:00.0", "0x020000", "0x14e4", "tg3");
  add("0000:a1:00.0", "0x020700", "0x15b3", "mlx5_core");
  std::filesystem::create_directories(sysfs_ / "bus/pci/devices/0000:a1:00.0/infiniband/mlx5_0");
  add("0000:a1:00.1", "0x020000", "0x15b3", "");  // a virtual function, that a virtual machine is to have
  std::filesystem::create_directories(sysfs_ / "bus/pci/devices/0000:a1:00.1/physfn");
  EXPECT_EQ(find("pci_nics").ok, true) << find("pci_nics").why;
  EXPECT_EQ(find("pci_nics").value, "1 mlx5_core, 1 tg3");
  add("0000:a2:00.0", "0x020700", "0x15b3", "mlx5_core");
  EXPECT_SAYS(find("pci_nics").why, "InfiniBand device 0000:a2:00.0 has no RDMA driver: load mlx5_ib");
  add("0000:03:00.0", "0x028000", "0x8086", "");                                                   // Wi-Fi
  for (const auto& [address, kind, vendor] : {std::tuple("0000:82:00.0", "0x028000", "0x15b3"),    // ConnectX-3
                                              std::tuple("0000:43:00.0", "0x0c0600", "0x1077"),    // TrueScale
                                              std::tuple("10000:5e:00.0", "0x020800", "0x8086")})  // Omni-Path
    add(address, kind, vendor, "");
  EXPECT_EQ(find("pci_nics").value, "2 mlx5_core, 1 tg3, 3 without a driver");
}

// Folders, mounts and inventory.

TEST(NodeCheck, MountsWithSpacesAndWithoutPermissionAreNotStale) {
  const TemporaryFolder root;
  std::filesystem::create_directories(root / "locked/a b");
  root.write("proc/self/mounts", "/dev/sda /data xfs rw 0 0\nproc /proc proc rw 0 0\nserver:/a " +
                                     root.path().string() + "/locked/a\\040b nfs4 rw 0 0");
  const auto why = [&] { return look_at_mounts(root.path(), 60s).why; };
  EXPECT_EQ(why(), "");
  EXPECT_EQ(look_at_mounts(root.path(), 60s).value, "/data, " + root.path().string() + "/locked/a b");
  std::filesystem::permissions(root.path(), std::filesystem::perms::all);
  std::filesystem::permissions(root / "locked", std::filesystem::perms::none);
  setfsuid(65534);  // of this thread and of those that it starts; it does nothing if we are not root
  EXPECT_EQ(why(), "");
  setfsuid(0);
  std::filesystem::permissions(root / "locked", std::filesystem::perms::all);
}

// What a node lost is no longer "ok".
TEST(NodeCheck, TheInventoryOfANode) {
  const TemporaryFolder root;
  for (const char* number : {"0", "1", "2", "3"}) {
    const auto port = std::string("sys/class/infiniband/mlx5_") + number + "/ports/1/";
    root.write(port + "state", *number == '3' ? "1: DOWN" : "4: ACTIVE");
    root.write(port + "rate", *number == '2' ? "10 Gb/sec (1X SDR)" : "400 Gb/sec (4X NDR)");
  }
  for (const char* gpu : {"0000:17:00.0", "0000:65:00.0"})
    root.write(std::string("proc/driver/nvidia/gpus/") + gpu + "/information", "Model: \t NVIDIA H100");
  root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1  Sat Aug 19");
  root.write("proc/self/mounts", "proc /proc proc rw 0 0\nserver:/home /home nfs4 rw 0 0");
  const auto why = [&](const char* wanted, const std::filesystem::path& of) {
    const auto inventory = nlohmann::json::parse(wanted);
    check_inventory(inventory);
    const auto finding = look_at_inventory(inventory, of);
    EXPECT_EQ(finding.ok, finding.why.empty());
    return finding.why.substr(0, finding.why.find(": the site file"));
  };
  EXPECT_EQ(
      why(R"({"gpus": 2, "gpu": "NVIDIA H100", "cpus": 1, "driver": "550[.].*", "rdma_ports": 3, "memory_gib": 0.1,
                    "mounts": ["/home"]})",
          root.path()),
      "");
  EXPECT_EQ(why(R"({"rdma_ports": 4, "rdma_gbit_per_s": 400})", root.path()),
            "rdma_gbit_per_s is 10.0, and at least 400 is wanted; rdma_ports is 3, and at least 4 is wanted");
  EXPECT_EQ(why(R"({"driver": "535[.].*", "gpus": 3})", root.path()),
            "driver is \"550.1\", and \"535[.].*\" is wanted; gpus is 2, and at least 3 is wanted");
  EXPECT_EQ(why(R"({"mounts": ["/home", "/scratch"]})", root.path()), "/scratch is not mounted");
  EXPECT_EQ(why(R"({"gpus": 8, "gpu": "NVIDIA H100.*", "rdma_ports": 1})", root / "none"),
            "gpu is [], and \"NVIDIA H100.*\" is wanted; gpus is 0, and at least 8 is wanted; rdma_ports is 0, and at "
            "least 1 is wanted");
}

// A child's time is others' until somebody has waited for it.
TEST(NodeCheck, OtherWorkIsThatOfOtherProcesses) {
  const Ticks start = ticks();
  const pid_t child = fork();
  for (timespec used{}; child == 0 && used.tv_sec < 1;) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  if (child == 0) _exit(0);
  siginfo_t ignored{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ignored, WEXITED | WNOWAIT), 0);
  const double with_child = other_work_since(start);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(with_child > other_work_since(start) || with_child < 0) << with_child;  // < 0: as in gVisor
}

// Memory and arithmetic.

TEST(NodeCheck, ACoreThatMovesLittleIsNamed) {
  EXPECT_EQ(why_slow_memory(3e9), "");
  EXPECT_EQ(why_slow_memory(0.5e9),
            "one core moves 0.5 GB/s, and any server's moves 10: look at the CPU governor, huge "
            "pages and the cgroup's cpu.max");
}

TEST(NodeCheck, ACoreFarBelowItsPeakHasASlowLibrary) {
  EXPECT_EQ(why_slow(58e9, 60e9, "/lib/libopenblas.so.0"), "");
  EXPECT_EQ(why_slow(31e9, 60e9, "/lib/libopenblas.so.0"), "");  // caches
  EXPECT_SAYS(why_slow(22e9, 60e9, "/lib/openblas-pthread/libblas.so.3"),
              "one core does 22 GFLOP/s in matrix products, and 60 in its own multiply-adds: "
              "/lib/openblas-pthread/libblas.so.3 uses kernels of an older CPU: unset OPENBLAS_CORETYPE");
  EXPECT_SAYS(why_slow(2e9, 60e9, "/lib/blas/libblas.so.3"), "/lib/blas/libblas.so.3 is probably the reference BLAS");
  EXPECT_EQ(why_slow(2e9, 0, ""), "");  // unknown, as without AVX2
}

}  // namespace findings_test
