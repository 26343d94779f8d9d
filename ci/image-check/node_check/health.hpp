// health.hpp: what hardware and drivers say of themselves: GPUs by NVML, PCIe links, error counters, the kernel's log.
#pragma once

#include "finding.hpp"
#include "limits.hpp"

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace boost::program_options {
class options_description;
}

namespace node_check {

using Counters = std::map<std::string, double>;  // "mlx5_0/1 link_downed"

// Counters of errors: RDMA ports, physical network interfaces, memory (EDAC), PCIe (AER), CPUs that were throttled.
Counters error_counters(const std::filesystem::path& sysfs);

// Wrong if a counter grew since the last look; a few of some counters, such as symbol_error, are tolerated. `boot` is
// this boot's id: after another boot, and after a counter went back, all of it is new. `before`: nothing, there was no
// look.
struct LastLook {
  std::string boot;
  Counters counters;
  double kernel_message = -1;  // number of the last one
  std::string broken{};        // what the kernel's log said of broken hardware since the boot
};
Finding judge_counters(const LastLook& now, const std::optional<LastLook>& before);

// Width and speed of the PCIe links of GPUs, network interfaces and NVMe disks against what both ends can do. An idle
// GPU slows its link down, so that its speed is not judged.
Finding look_at_links(const std::filesystem::path& sysfs);

// Physical network interfaces and RDMA devices: state, speed, firmware; the versions of BIOS and microcode; to be the
// same on all nodes.
Finding look_at_nics(const std::filesystem::path& sysfs);

// The folder and the kind of each file system in /proc/self/mounts, where "\\040" stands for a space in a name.
std::vector<std::pair<std::string, std::string>> mounts_in(const std::filesystem::path& file);

// File servers that are mounted must answer by then; none can hang this.
Finding look_at_mounts(const std::filesystem::path& mounts,
                       std::chrono::milliseconds timeout = std::chrono::seconds(2));

// Messages on broken hardware with a number above `after`: machine checks and memory errors that were not corrected,
// PCIe, disks and their file systems, network cards, and NVIDIA's Xid (but for those of wrong programs). `last` becomes
// the number of the last message. `log` has the lines of /dev/kmsg.
Finding look_at_kernel_log(const std::filesystem::path& log, double after, double& last);

// Each GPU by NVML: versions, ECC, row remaps, throttling, PCIe width, NVLinks, persistence. Counters of errors go to
// `counters`. Nothing is found where `library` cannot be loaded.
Gpus gpus_of_nvml(const std::string& library);
Findings look_at_nvml(const std::string& library, Counters& counters);

// How long a file of 4 KiB takes to reach the disk.
Finding look_at_sync(const std::filesystem::path& folder);

// `dcgmi diag -r 1 -j`: wrong if a test failed, and if one passed with a warning.
Findings look_at_dcgm();
Finding judge_dcgm(const std::string& answer);

struct HealthOptions {
  std::string sysfs = "/sys", kernel_log = "/dev/kmsg";
  std::string nvml = "libnvidia-ml.so.1";  // a name that the system knows, or an absolute path
  std::string state;  // folder on the command line, then the file of the last look; "": none is kept
  boost::program_options::options_description description();
};
// The file of that host in the folder, which is made. Throws std::filesystem::filesystem_error.
std::string state_file(const std::string& folder, const std::string& host);
// All of these but DCGM.
Findings look_at_health(const HealthOptions& options);

}  // namespace node_check
