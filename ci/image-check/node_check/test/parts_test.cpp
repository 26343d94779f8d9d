// The parts of node_check, with faults planted.
#include "../gpu.hpp"
#include "../health.hpp"
#include "../inventory.hpp"
#include "../limits.hpp"
#include "../memory.hpp"
#include "../names.hpp"

#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <regex>
#include <stdexcept>
#include <tuple>

namespace parts_test {

using namespace node_check;
using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;
using namespace std::chrono_literals;

// Patterns.

TEST(NodeCheck, PatternsDependOnThePositionAndTurnEveryBit) {
  std::vector<std::uint64_t> first(1000), turned(1000);
  fill(first, 0, 0);
  fill(turned, 0, 1);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i] ^ turned[i], ~std::uint64_t{0});
  EXPECT_EQ(compare(first, 0, 0).count, 0u);
  EXPECT_EQ(compare(turned, 0, 1).count, 0u);
  EXPECT_EQ(compare(first, 0, 1).count, first.size());
  EXPECT_EQ(compare(first, 1, 0).count, first.size());  // data of the next word's place
}

TEST(NodeCheck, AWrongWordIsNamedWithItsBits) {
  std::vector<std::uint64_t> words(1000);
  fill(words, 5000, 0);
  words[17] ^= (1u << 3) | (std::uint64_t{1} << 63);
  words[999] = 0;
  const Wrong wrong = compare(words, 5000, 0);
  EXPECT_EQ(wrong.count, 2u);
  EXPECT_EQ(wrong.at, 5017u);
  EXPECT_EQ(wrong.found ^ wrong.expected, (std::uint64_t{1} << 63) | 8);
  EXPECT_SAYS(to_text(wrong), "word 5017 is 0x");
  EXPECT_SAYS(to_text(wrong), ": bit 3 63");
  EXPECT_SAYS(to_text({1, 2, 0, ~std::uint64_t{0}}), "bit 0 1 2 3 4 5 6 7 ...");
}

// Limits and devices.

TEST(NodeCheck, RdmaNeedsMemlock) {
  rlimit before{};
  getrlimit(RLIMIT_MEMLOCK, &before);
  rlimit low = before;
  low.rlim_cur = 65536;
  setrlimit(RLIMIT_MEMLOCK, &low);
  TemporaryFolder sysfs;
  const auto memlock = [&] { return look_at_limits(sysfs.path()).at(0); };
  EXPECT_EQ(memlock().ok, true);
  sysfs.write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
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
  Finding find(const std::string& what, std::optional<std::size_t> gpus_of_cuda = std::nullopt) const {
    for (const Finding& finding : look_at_pci(sysfs_.path(), gpus_of_cuda))
      if (finding.what == what) return finding;
    throw std::logic_error("no " + what);
  }
  TemporaryFolder sysfs_;
};

TEST_F(NodeCheckPci, WithoutDevices) {
  EXPECT_EQ(find("pci_gpus").ok, std::nullopt);
  EXPECT_EQ(find("pci_nics").ok, std::nullopt);
  add("0000:00:00.0", "0x060000", "0x8086", "");  // a bridge needs no driver, nor does the screen of a server
  add("0000:02:00.0", "0x030000", "0x1a03", "");
  EXPECT_EQ(find("pci_gpus").ok, std::nullopt);
}

TEST_F(NodeCheckPci, AGpuNeedsItsDriver) {
  add("0000:17:00.0", "0x030200", "0x10de", "nvidia");
  add("0000:18:00.0", "0x030200", "0x10de", "nvidia");
  EXPECT_EQ(find("pci_gpus", 2).ok, true);
  EXPECT_EQ(find("pci_gpus").ok, true);
  EXPECT_EQ(find("pci_gpus").value, "2 nvidia");
  EXPECT_EQ(find("pci_gpus", 0).ok, false);
  EXPECT_SAYS(find("pci_gpus", 0).why, "2 GPUs on the PCI bus have a driver, and CUDA sees none: ");
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

// Health, with recorded trees.

class NodeCheckHealth : public testing::Test {
 protected:
  void add_rdma(const char* down) const {
    sysfs_.write("class/infiniband/mlx5_0/ports/1/counters/link_downed", down);
    sysfs_.write("class/infiniband/mlx5_0/ports/1/counters/symbol_error", "7");
    sysfs_.write("class/infiniband/mlx5_0/fw_ver", "28.39.1002");
  }
  TemporaryFolder sysfs_;
};

TEST_F(NodeCheckHealth, ErrorCountersMayNotGrow) {
  EXPECT_EQ(judge_counters({"b", error_counters(sysfs_.path()), 0}, std::nullopt).ok, std::nullopt);
  add_rdma("5");
  sysfs_.write("devices/system/edac/mc/mc0/ce_count", "40");
  sysfs_.write("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3");
  sysfs_.write("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4");
  sysfs_.write("bus/pci/devices/0000:17:00.0/aer_dev_fatal", "DLP 0\nTOTAL_ERR_FATAL 0");
  sysfs_.write("class/net/eth0/device/vendor", "0x1");
  sysfs_.write("class/net/eth0/statistics/rx_crc_errors", "0");
  sysfs_.write("class/net/veth0/statistics/rx_crc_errors", "9");  // no hardware
  const Counters now = error_counters(sysfs_.path());
  EXPECT_EQ(now, (Counters{{"mlx5_0/1 link_downed", 5},
                           {"mlx5_0/1 symbol_error", 7},
                           {"memory mc0 ce_count", 40},
                           {"CPUs core_throttle_count", 7},
                           {"PCIe 0000:17:00.0 aer_dev_fatal", 0},
                           {"eth0 rx_crc_errors", 0}}));
  const LastLook look{"b", now, 0};
  EXPECT_EQ(judge_counters(look, std::nullopt).ok, true);  // old errors are no fault of today
  EXPECT_EQ(judge_counters(look, look).ok, true);
  auto before = look;
  before.counters["mlx5_0/1 link_downed"] = 4;
  EXPECT_SAYS(judge_counters(look, before).why, "mlx5_0/1 link_downed grew by 1: look at the cable");
  EXPECT_EQ(judge_counters(look, before).ok, false);
  before.counters["mlx5_0/1 link_downed"] = 9;  // it was reset: all 5 are new
  EXPECT_SAYS(judge_counters(look, before).why, "link_downed grew by 5");
  before = look;
  before.boot = "another one";
  EXPECT_SAYS(judge_counters(look, before).why, "link_downed grew by 5");
  before = look;
  before.counters["memory mc0 ce_count"] = 1;  // 39 are tolerated
  EXPECT_EQ(judge_counters(look, before).ok, true);
  const LastLook uncorrected{"b", {{"memory mc0 ue_count", 1}}, 0};
  EXPECT_EQ(judge_counters(uncorrected, std::nullopt).ok, false);
  EXPECT_EQ(judge_counters(uncorrected, uncorrected).ok, false);  // still
}

// The self-test has links that are narrow or slow.
TEST_F(NodeCheckHealth, LinksAreAsFastAsBothEnds) {
  EXPECT_EQ(look_at_links(sysfs_.path()).ok, std::nullopt);
  const std::string slot = "devices/pci0000:00/0000:00:01.0", gpu = slot + "/0000:19:00.0";  // an idle GPU
  const std::pair<const char*, const char*> files[] = {{"/class", "0x030200"},
                                                       {"/current_link_width", "8"},
                                                       {"/max_link_width", "16"},
                                                       {"/current_link_speed", "2.5 GT/s PCIe"},
                                                       {"/max_link_speed", "32.0 GT/s PCIe"}};
  for (const auto& [file, text] : files) sysfs_.write(gpu + file, text);
  std::filesystem::create_directories(sysfs_ / "bus/pci/devices");
  std::filesystem::create_directory_symlink(sysfs_ / gpu, sysfs_ / "bus/pci/devices/0000:19:00.0");
  EXPECT_SAYS(look_at_links(sysfs_.path()).why, "0000:19:00.0 has PCIe width 8 lanes of 16: reseat the card");
  sysfs_.write(slot + "/max_link_width", "8");
  EXPECT_EQ(look_at_links(sysfs_.path()).ok, true) << look_at_links(sysfs_.path()).why;
}

TEST_F(NodeCheckHealth, NicsWithStateAndFirmware) {
  EXPECT_EQ(look_at_nics(sysfs_.path()).ok, std::nullopt);
  add_rdma("0");
  sysfs_.write("class/net/eth0/device/vendor", "0x1");
  sysfs_.write("class/net/eth0/operstate", "up");
  sysfs_.write("class/net/eth0/speed", "100000");
  sysfs_.write("class/dmi/id/bios_version", "2.21");
  EXPECT_EQ(look_at_nics(sysfs_.path()).value, "eth0 up 100000 Mb/s, mlx5_0 firmware 28.39.1002, BIOS 2.21");
}

TEST_F(NodeCheckHealth, MountsWithSpacesAndWithoutPermissionAreNotStale) {
  std::filesystem::create_directories(sysfs_ / "locked/a b");
  sysfs_.write("mounts", "server:/a " + sysfs_.path().string() + "/locked/a\\040b nfs4 rw 0 0");
  const auto why = [&] { return look_at_mounts(sysfs_ / "mounts", 60s).why; };
  EXPECT_EQ(why(), "");
  std::filesystem::permissions(sysfs_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(sysfs_ / "locked", std::filesystem::perms::none);
  setfsuid(65534);  // of this thread and of those that it starts; it does nothing if we are not root
  EXPECT_EQ(why(), "");
  setfsuid(0);
  std::filesystem::permissions(sysfs_ / "locked", std::filesystem::perms::all);
  std::filesystem::remove(sysfs_ / "locked/a b");
  EXPECT_SAYS(why(), "locked/a b is stale (No such file or directory)");
}

TEST_F(NodeCheckHealth, TheKernelsLog) {
  double last = -1;
  EXPECT_EQ(look_at_kernel_log(sysfs_ / "none", -1, last).ok, std::nullopt);
  sysfs_.write("kmsg",
               "6,10,1,-;mce: CPU0: Thermal monitoring enabled (TM1)\n"
               "4,11,2,-;NVRM: Xid (PCI:0000:17:00): 31, pid=7, a program's page fault\n");
  EXPECT_EQ(look_at_kernel_log(sysfs_ / "kmsg", -1, last).ok, true);
  EXPECT_EQ(last, 11);
  sysfs_.write("kmsg",
               "4,11,2,-;NVRM: Xid (PCI:0000:17:00): 94, pid=7, Contained ECC error\n"
               "2,12,3,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400\n SUBSYSTEM=cpu\n"
               "3,13,3,-;blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0\n"
               "3,14,3,-;Buffer I/O error on dev sdb1, logical block 0, async page read\n");
  const Finding wrong = look_at_kernel_log(sysfs_ / "kmsg", -1, last);
  EXPECT_EQ(wrong.ok, false);
  EXPECT_EQ(wrong.value, 4);
  EXPECT_SAYS(wrong.why, "Xid (PCI:0000:17:00): 94");
  EXPECT_EQ(look_at_kernel_log(sysfs_ / "kmsg", 14, last).ok, true);  // seen before
}

// Texts of Linux 6 and of NVIDIA's driver.
TEST_F(NodeCheckHealth, WhichMessagesOfTheKernelAreFaults) {
  const std::string xid = "NVRM: Xid (PCI:0018:01:00): ", mce = "mce: [Hardware Error]: ";
  for (const auto& [text, is_fault] : std::initializer_list<std::pair<std::string, bool>>{
           {mce + "Machine check events logged", false},  // of corrected errors, too
           {mce + "CPU 0: Machine Check: 0 Bank 4: 8800000040080a13", false},
           {mce + "CPU 1: Machine Check Exception: 5 Bank 0: b200000000070005", true},
           {"[Hardware Error]: Corrected error, no action required.", false},
           {"[Hardware Error]: Uncorrected, software containable error.", true},
           {"[Hardware Error]: System Fatal error.", true},
           {"EDAC MC0: 1 CE memory read error on mc#0csrow#2channel#1 (csrow:2 page:0x6 offset:0x0)", false},
           {"EDAC MC0: 1 UE on mc#0csrow#2channel#1 (csrow:2 channel:1 page:0x6 offset:0x0 grain:64)", true},
           {"EDAC MC1: 1 UE Multi-bit ECC on unknown label (node:0 card:1 page:0x6 offset:0x0)", true},
           {"Memory failure: 0xaf34214: recovery action for dirty LRU page: Recovered", true},
           {"nvme 10000:01:00.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer", false},
           {"nvme 10000:01:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Physical Layer", true},
           {"device offline error, dev sdb, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0", true},
           {"md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.", true},
           {"md/raid1:md1: Disk failure on sda1, disabling device.\\x0amd/raid1:md1: Operation continuing", true},
           {"EXT4-fs (dm-0): Remounting filesystem read-only", true},
           {"EXT4-fs (sda1): I/O error while writing superblock", true},
           {"EXT4-fs (loop3): Remounting filesystem read-only", false},
           {"XFS (sda1): Log I/O Error (0x2) detected at xlog_ioend_work+0x6f/0x80 [xfs] (xfs_log.c:1377).  Shutting "
            "down filesystem.",
            true},
           {"nvme nvme4: Disabling device after reset failure: -19", true},
           {"nvme nvme0: Device not ready; aborting reset, CSTS=0x1", true},
           {"nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller", true},
           {"nvme nvme4: I/O tag 22 (2016) opcode 0x2 (I/O Cmd) QID 3 timeout, completion polled", false},
           {"block nvme0n1: no available path - failing I/O", true},
           {"mlx5_core 0000:61:00.1: mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads "
            "still not working",
            true},
           {"mlx5_core 0000:5c:00.0: port_module:1131:(pid 0): Port module event[error]: module 0, Cable error, High "
            "Temperature",
            true},
           {"mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot "
            "(27W).",
            false},
           {"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", true},
           {"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress PRIV error", false},
           {"NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2901) installed in this system has\\x0aNVRM: "
            "fallen off the bus and is not responding to commands.",
            true},
           {xid + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)", true},
           {xid + "145, pid=8, name=ray::Worker, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", false},
           {xid + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", true},
           {xid + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", false},
           {xid + "63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping", false},
           {xid + "69, pid=7, name=a.out, Class Error: Subchannel 0x0, Class 0x0", false},
           {xid + "109, pid=7, name=a.out, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x24c009", true},
           {xid + "172, pid=7, name=a.out, Uncorrectable SRAM error", true}}) {
    sysfs_.write("kmsg", "3,1,1,-;" + text + "\n");
    double last = -1;
    EXPECT_EQ(look_at_kernel_log(sysfs_ / "kmsg", -1, last).ok, !is_fault) << text;
  }
}

// The kernel prints the names of programs that crash, and services write to its log. Neither is hardware.
TEST_F(NodeCheckHealth, NamesOfProgramsInTheKernelsLogAreNoFaults) {
  std::string log;
  int number = 0;
  const auto add = [&](int facility_and_level, const std::string& text) {
    log += fmt::format("{},{},1,-;{}\n", facility_and_level, ++number, text);
  };
  for (const std::string name :
       {"EDAC a: 1 UE", "EDAC MC0: 1 UE ", "NVRM: Xid (): 79", "NVRM: Xid (P): 7", "I/O error, dev ", "mce: [Hardware",
        "severity=Fatal", "nvme0: controll", "{1}[Hardware Er", "sda, sector 1:", "NVRM: GPU has f",
        "NVRM: ", "XFS (sda1): ", "EDAC MC0: 1 UE", "nvme nvme0: I/O", "Memory failure:", "md/raid0md0: Di"}) {
    add(6, name + "[712]: segfault at 0 ip 0000000000000000 sp 00007ffe error 14 in a[400000+1000]");
    add(6, name +
               "[7]: segfault at 0 error 14 in  timeout, reset controller fallen off the bus Shutting down "
               "filesystem[4+1]");
    add(4, name + ": page allocation failure: order:4, mode:0xcc0");
    add(3, "Out of memory: Killed process 712 (" + name + ") total-vm:4kB");
    add(4, "process '/tmp/" + name + " I/O error, dev sda, sector 8' launched 'x' with NULL argv: empty string added");
  }
  add(11, "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: a service wrote this");
  add(3, "I/O error, dev loop0, sector 8 op 0x0:(READ): a file of a user that was mounted");
  add(4, "NVRM: Xid (PCI:0000:17:00): 99999999999999999999");
  add(4, std::string(50'000, 'x'));
  sysfs_.write("kmsg", log);
  double last = -1;
  const Finding finding = look_at_kernel_log(sysfs_ / "kmsg", -1, last);
  EXPECT_EQ(finding.ok, true) << finding.why;
  EXPECT_EQ(last, number);
}

TEST_F(NodeCheckHealth, GpusByTheStandInOfNvml) {
  Counters counters;
  EXPECT_EQ(look_at_nvml("libno-such-nvml.so", counters).at(0).ok, std::nullopt);
  const auto with = [&](const char* fault) {
    sysfs_.write("nvml", fault);
    setenv("NVML_STAND_IN", (sysfs_ / "nvml").c_str(), 1);
    const Findings all = look_at_nvml(PATH_nvml_stand_in_of_health, counters);
    EXPECT_EQ(all.size(), 2U);
    EXPECT_EQ(all.at(0).ok, true);
    return all.at(1);
  };
  EXPECT_EQ(with("").ok, true);
  EXPECT_EQ(with("").value,
            "stand-in of a GPU, driver 550.1, VBIOS 96.1, persistence on, ECC on, PCIe x16, 18 NVLinks");
  EXPECT_EQ(with("throttled 5").ok, true);  // idle, and a power cap, which is normal under load
  with("ecc 3");
  EXPECT_EQ(counters.at("gpu1 ECC uncorrected"), 3);
  EXPECT_EQ(judge_counters({"b", counters, 0}, std::nullopt).ok, false);
  unsetenv("NVML_STAND_IN");
}

TEST_F(NodeCheckHealth, DcgmPassesOnlyWithoutWarnings) {
  const auto answer = [](const std::string& result) {
    return "Version 3\n{\"DCGM GPU Diagnostic\": {\"test_categories\": [{\"category\": \"x\", \"tests\": [{\"name\": "
           "\"Memory\", \"results\": [" +
           result + "]}]}]}}";
  };
  EXPECT_EQ(judge_dcgm(answer(R"({"gpu_id": "0", "status": "Pass"})")).ok, true);
  EXPECT_EQ(judge_dcgm(answer(R"({"gpu_id": "0", "status": "Skip"})")).ok, true);
  EXPECT_SAYS(judge_dcgm(answer(R"({"gpu_id": "0", "status": "Fail"})")).why, "Memory: Fail");
  EXPECT_SAYS(judge_dcgm(answer(R"({"status": "Pass", "warnings": [{"warning": "cannot allocate"}]})")).why,
              "Memory: [{\"warning\":\"cannot allocate\"}]");
  EXPECT_EQ(judge_dcgm("Error: unable to connect").ok, false);
  EXPECT_EQ(judge_dcgm("{}").ok, false);
}

// What a node lost is no longer "ok": with the stand-in of NVML, which has two GPUs of 18 NVLinks.
TEST_F(NodeCheckHealth, TheInventoryOfANode) {
  for (const char* number : {"0", "1", "2", "3"}) {
    const auto port = std::string("class/infiniband/mlx5_") + number + "/ports/1/";
    sysfs_.write(port + "state", *number == '3' ? "1: DOWN" : "4: ACTIVE");
    sysfs_.write(port + "rate", *number == '2' ? "10 Gb/sec (1X SDR)" : "400 Gb/sec (4X NDR)");
  }
  sysfs_.write("proc/self/mounts", "proc /proc proc rw 0 0\nserver:/home /home nfs4 rw 0 0");
  sysfs_.write("lib/libnccl.so.2.21.5", "");
  std::filesystem::create_symlink("libnccl.so.2.21.5", sysfs_ / "lib/libnccl.so.2");
  setenv("NVML_STAND_IN", (sysfs_ / "fault").c_str(), 1);
  const HealthOptions options{.sysfs = sysfs_.path(), .nvml = PATH_nvml_stand_in_of_health, .state = ""};
  const auto why = [&](const char* wanted, const std::string& fault = "", const HealthOptions* other = nullptr) {
    sysfs_.write("fault", fault);
    const auto inventory = nlohmann::json::parse(wanted);
    check_inventory(inventory);
    const auto finding = look_at_inventory(inventory, other ? *other : options, sysfs_.path());
    EXPECT_EQ(finding.ok, finding.why.empty());
    return finding.why.substr(0, finding.why.find(": the site file"));
  };
  EXPECT_EQ(why(R"({"gpus": 2, "gpu": "stand-in of a GPU", "nvlinks": 18, "ecc": true, "persistence": true, "cpus": 1,
                    "driver": "550[.].*", "rdma_ports": 3, "memory_gib": 0.1, "mounts": ["/home"], "kernel": ".*",
                    "files": {"/lib/libnccl.so.2": "libnccl[.]so[.]2[.]21[.].*"}})"),
            "");
  EXPECT_EQ(why(R"({"gpus": 2})", "lost 1"), "gpus is 1, and at least 2 is wanted");
  // Ways between GPUs, and NUMA nodes.
  for (const auto& [device, node] :
       {std::pair("bus/pci/devices/10000:17:00.0", "0"), std::pair("bus/pci/devices/0000:65:00.0", "1"),
        std::pair("class/infiniband/mlx5_0/device", "0")}) {
    sysfs_.write(std::string(device) + "/numa_node", node);
    sysfs_.write(std::string(device) + "/local_cpulist", "4094-4095,0-4000");
  }
  const char* const near = R"({"p2p": true, "gpu_topology": "0-1 NODE", "numa": {"gpu0": 0, "gpu1": 1, "mlx5_0": 0}})";
  EXPECT_EQ(why(near), "");
  EXPECT_EQ(why(near, "no_p2p 1\ntopology 50"),
            "gpu_topology is \"0-1 SYS\", and \"0-1 NODE\" is wanted; p2p is false, and true is wanted");
  sysfs_.write("bus/pci/devices/0000:65:00.0/numa_node", "-1");
  sysfs_.write("bus/pci/devices/10000:17:00.0/local_cpulist", "4094-4095");
  sysfs_.write("class/infiniband/mlx5_0/device/numa_node", "1");
  EXPECT_EQ(why(near),
            "gpu0 is on NUMA node 0, whose CPUs this process may not use, and 0 is wanted; gpu1 is on NUMA "
            "node unknown, and 1 is wanted; mlx5_0 is on NUMA node 1, and 0 is wanted");
  EXPECT_EQ(why(R"({"gpus": 2})", "no_p2p 1\ntopology 50"), "");  // the site file asks for neither
#ifdef EMULATED_GPU
  setenv("EMULATED_GPUS", "3", 1);
  const HealthOptions emulated{.sysfs = sysfs_.path(), .nvml = EMULATED_GPU "/libnvidia-ml.so.1", .state = ""};
  EXPECT_EQ(why(R"({"gpus": 3, "p2p": true, "gpu_topology": "0-1 PIX, 0-2 PIX, 1-2 PIX"})", "", &emulated), "");
  EXPECT_EQ(why(R"({"gpu_topology": "0-1 SYS, .*"})", "", &emulated),
            "gpu_topology is \"0-1 PIX, 0-2 PIX, 1-2 PIX\", and \"0-1 SYS, .*\" is wanted");
#endif
  EXPECT_EQ(why(R"({"gpus_idle": true})"), "");
  EXPECT_EQ(why(R"({"gpus_idle": true})", "processes 1"), "gpus_idle is false, and true is wanted");
  EXPECT_EQ(why(R"({"nvlinks": 18})", "nvlinks 0"), "nvlinks is 0, and at least 18 is wanted");
  EXPECT_EQ(why(R"({"rdma_ports": 4, "rdma_gbit_per_s": 400})"),
            "rdma_gbit_per_s is 10.0, and at least 400 is wanted; rdma_ports is 3, and at least 4 is wanted");
  EXPECT_EQ(why(R"({"ecc": false})"), "ecc is true, and false is wanted");
  EXPECT_EQ(why(R"({"driver": "535[.].*"})"), "driver is \"550.1\", and \"535[.].*\" is wanted");
  EXPECT_EQ(why(R"({"mounts": ["/home", "/scratch"]})"), "/scratch is not mounted");
  EXPECT_EQ(why(R"({"files": {"/lib/libnccl.so.2": "libnccl[.]so[.]2[.]18.*", "/lib/libmpi.so": ".*"}})"),
            "/lib/libmpi.so is not there; /lib/libnccl.so.2 is libnccl.so.2.21.5, and not libnccl[.]so[.]2[.]18.*");
  const HealthOptions without{.sysfs = sysfs_ / "none", .nvml = "libno-such-nvml.so", .state = ""};
  EXPECT_EQ(
      why(R"({"gpus": 8, "gpu": "NVIDIA H100.*", "rdma_ports": 1, "ecc": true})", "", &without),
      "ecc is unknown, and true is wanted; gpu is [], and \"NVIDIA H100.*\" is wanted; gpus is 0, and at least 8 is "
      "wanted; rdma_ports is 0, and at least 1 is wanted");
  unsetenv("NVML_STAND_IN");
}

TEST_F(NodeCheckHealth, StateIsKeptBetweenLooks) {
  add_rdma("1");
  sysfs_.write("kmsg", "2,11,1,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: b200000000070005\n");
  const auto state = sysfs_ / "state.json";
  const auto look = [&](const std::string& what) {
    for (const Finding& finding : look_at_health(
             {.sysfs = sysfs_.path(), .kernel_log = sysfs_ / "kmsg", .nvml = "libno-such-nvml.so", .state = state}))
      if (finding.what == what) return finding;
    throw std::logic_error("no " + what);
  };
  EXPECT_SAYS(look("error_counters").why, "this is the first look");
  // What is broken is not forgotten when the message has left the kernel's buffer.
  sysfs_.write("kmsg", "6,12,1,-;fine\n");
  EXPECT_EQ(look("kernel_log").ok, false);
  EXPECT_SAYS(look("kernel_log").why, "Machine Check");
  EXPECT_EQ(look("error_counters").ok, true);
  add_rdma("2");
  EXPECT_SAYS(look("error_counters").why, "mlx5_0/1 link_downed grew by 1");
  EXPECT_EQ(look("error_counters").ok, true);  // said once
  std::filesystem::remove(state);
  EXPECT_EQ(look("kernel_log").ok, true);

  // A file that holds something else, or a link or a pipe of that name, is replaced: the look after the next compares.
  sysfs_.write("of another", "keep me");
  for (const std::string wrong : {R"({"boot": "", "counters": [1], "kernel_message": {}})", "cut {", "link", "pipe"}) {
    std::filesystem::remove(state);
    if (wrong == "link")
      std::filesystem::create_symlink(sysfs_ / "of another", state);
    else if (wrong == "pipe")
      ASSERT_EQ(mkfifo(state.c_str(), 0666), 0);
    else
      sysfs_.write("state.json", wrong);
    EXPECT_SAYS(look("error_counters").why, "this is the first look") << wrong;
    EXPECT_EQ(look("error_counters").why, "") << wrong;
  }
  EXPECT_EQ(text_of(sysfs_ / "of another"), "keep me\n");
}

// Memory and arithmetic.

TEST(NodeCheck, CausesOfASlowNode) {
  const TemporaryFolder root;
  EXPECT_EQ(likely_causes(root.path()), "");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate");
  EXPECT_EQ(likely_causes(root.path()), "");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  root.write("proc/self/cgroup", "0::/job");
  root.write("sys/fs/cgroup/job/cpu.max", "50000 100000");
  const std::string causes = likely_causes(root.path());
  EXPECT_SAYS(causes, "the CPU governor is powersave");
  EXPECT_SAYS(causes, "transparent huge pages are off");
  EXPECT_SAYS(causes, "the cgroup allows only 0.5 CPUs");
  EXPECT_EQ(why_slow_memory(3e9, root.path()), "");
  EXPECT_EQ(why_slow_memory(0.5e9, root.path()), "one core moves 0.5 GB/s, and any server's moves 10" + causes);
}

const char* const cpuinfo = R"(processor	: 0
model name	: AMD EPYC
flags		: fpu constant_tsc fma avx avx2
bogomips	: 5000.00

processor	: 1
)";

TEST(NodeCheck, ACoreFarBelowItsPeakHasASlowLibrary) {
  const auto peak = peak_of_a_core(cpuinfo);
  ASSERT_TRUE(peak);
  EXPECT_DOUBLE_EQ(*peak, 40e9);
  EXPECT_EQ(why_slow(30e9, peak, "/lib/libopenblas.so.0"), "");
  EXPECT_EQ(why_slow(5.1e9, peak, "/lib/libopenblas.so.0"), "");
  EXPECT_SAYS(why_slow(1e9, peak, "/lib/libopenblas.so.0"), "one core does 1 GFLOP/s, and can do 40");
  EXPECT_SAYS(why_slow(2e9, peak, "/lib/blas/libblas.so.3"),
              "one core does 2 GFLOP/s, and can do 40: /lib/blas/libblas.so.3 is probably the reference BLAS");
  EXPECT_EQ(why_slow(2e9, peak, "/lib/openblas-pthread/libblas.so.3"), "");  // slow for another reason
  EXPECT_EQ(why_slow(2e9, std::nullopt, ""), "");
  EXPECT_DOUBLE_EQ(peak_of_a_core(std::regex_replace(cpuinfo, std::regex("avx2"), "avx2 avx512f")).value_or(0), 80e9);
  EXPECT_FALSE(peak_of_a_core("processor : 0\nflags : fpu sse2\nbogomips : 5000\n"));
  EXPECT_FALSE(peak_of_a_core("processor : 0\nBogoMIPS : 50.00\nFeatures : fp asimd\n"));  // Arm
}

TEST(NodeCheck, ArraysAreLargerThanTheCacheAndLeaveMemory) {
  EXPECT_EQ(array_length(0x1p30, 0x1p40), std::size_t{1} << 29);  // four times the cache
  EXPECT_EQ(array_length(0, 0x1p40), std::size_t{1} << 23);       // 64 MiB at least
  EXPECT_EQ(array_length(0x1p30, 3 * 0x1p33), std::size_t{1} << 29);
  EXPECT_EQ(array_length(0x1p30, 3 * 0x1p30), std::size_t{1} << 27);
}

// Names.

TEST(NodeCheck, Resolves) {
  const Resolved local = resolve("localhost", 10s);
  EXPECT_TRUE(local.loopback);
  EXPECT_FALSE(local.addresses.empty());
  const Resolved wrong = resolve("no.such.host.invalid", 10s);
  EXPECT_TRUE(wrong.addresses.empty());
  EXPECT_FALSE(wrong.error.empty());
}

TEST(NodeCheck, NamesAreJudged) {
  const Resolved own{"node0", {"127.0.1.1"}, "", true}, good{"node1", {"10.0.0.1"}, "", false},
      unknown{"node2", {}, "no address", false}, itself{"node4", {"127.0.1.1"}, "", true};
  EXPECT_EQ(judge_names("node0", {own, good}).ok, true);
  const Finding wrong = judge_names("node0", {own, unknown, itself});
  EXPECT_EQ(wrong.ok, false);
  EXPECT_EQ(wrong.value, 2);
  EXPECT_SAYS(wrong.why, "node2 has no address here (no address); node4 is 127.0.1.1 here, which is this node itself");
  EXPECT_EQ(judge_names("node2", {unknown}).ok, true);  // a laptop, alone
  EXPECT_SAYS(judge_names("node2", {unknown}).why, "node2 has no address here");
}

// With a stand-in for ssh that does what a host's name says.
TEST(NodeCheck, LogsIn) {
  const std::string path = getenv("PATH");
  const TemporaryFolder folder;
  folder.write("ssh", R"(#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
  good) exit 0 ;;
  closed) echo "Warning: something" >&2; echo "closed: Permission denied (publickey)." >&2; exit 255 ;;
  silent) exit 3 ;;
  hanging) exec sleep 60 ;;
esac)");
  std::filesystem::permissions(folder / "ssh", std::filesystem::perms::owner_all);
  setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  EXPECT_EQ(log_in({}).ok, std::nullopt);
  EXPECT_EQ(log_in({"good", "good"}).ok, true);
  const Finding wrong = log_in({"good", "closed", "silent"});
  EXPECT_EQ(wrong.ok, false);
  EXPECT_EQ(wrong.value, 2);
  EXPECT_SAYS(wrong.why, "closed: closed: Permission denied (publickey).; silent: exit status 3");
  const Finding hanging = log_in({"hanging"}, 1s);
  EXPECT_EQ(hanging.ok, false);
  EXPECT_SAYS(hanging.why, "hanging: no answer within 1 s");
  setenv("PATH", "/nowhere", 1);
  EXPECT_EQ(log_in({"good"}).ok, std::nullopt);  // no ssh is no fault
  setenv("PATH", path.c_str(), 1);
}

}  // namespace parts_test
