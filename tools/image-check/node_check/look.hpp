// look.hpp: what was found of a node, without loading any library: limits, the devices that it sees, and whether it has
// what its site says.
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace node_check {

struct Finding {
  std::string what;
  nlohmann::json value;  // a number where more or less is better, else a number or a text; null: unknown
  std::string unit;
  std::string better = "equal";   // or "more", "less"; "same": equal in all processes, whatever it was before
  std::optional<bool> ok = true;  // nothing: what this looks at is not here
  std::string why;                // and, where it is wrong, what to do
};
using Findings = std::vector<Finding>;

inline Finding absent(std::string what, std::string why) {
  return {std::move(what), nullptr, "", "equal", std::nullopt, std::move(why)};
}
inline Finding faulty(std::string what, std::string why) {
  return {std::move(what), nullptr, "", "equal", false, std::move(why)};
}

// As a line of results: what rank `rank` found on `host`.
inline nlohmann::json line_of(const Finding& finding, const std::string& host, int rank) {
  return {{"what", finding.what},
          {"rank", rank},
          {"host", host},
          {"value", finding.value},
          {"unit", finding.unit},
          {"better", finding.better},
          {"ok", finding.ok ? nlohmann::json(*finding.ok) : nlohmann::json()},
          {"why", finding.ok == false ? host + ": " + finding.why : finding.why}};
}

// Adds to what is wrong, or noteworthy: "one thing; another thing".
inline void add(std::string& text, const std::string& part) { text += (text.empty() ? "" : "; ") + part; }

// Undoes what a launcher bound this process to: the node is looked at, not a rank's part of it. What a cpuset withholds
// stays withheld.
void unbind();

// CPUs to compute on, and bytes of memory: this machine's, within the limits of this process.
std::size_t cpus_to_use();
double memory_bytes();

std::filesystem::path temporary_folder();  // TMPDIR or /tmp

// The build folder around this program that has 01-environment, 02-mpi ...; "": there is none.
std::filesystem::path folder_of_examples();

// memlock, open files, processes, core size, stack; CPUs and memory. RDMA devices in `root`/sys need memlock.
// `tmp` is the folder of temporary files.
Findings look_at_limits(const std::filesystem::path& root = "/", const std::filesystem::path& tmp = temporary_folder());

// One folder: its size, whether a file can be written, whether `needed` bytes are free, and whether 4 KiB reach its
// disk in time. In memory they need no time, unless something intercepts system calls.
Finding look_at_folder(const std::string& what, const std::filesystem::path& folder, double needed,
                       const std::string& what_to_do, double most_ms);

// GPUs as a library sees them.
struct Gpus {
  std::string seen_by{};  // CUDA or the driver
  std::vector<std::string> names{};
  std::string error{};  // why there may be more
};

// Those that NVIDIA's driver lists in `root`/proc: for a program that is to start where CUDA is broken.
Gpus gpus_of_driver(const std::filesystem::path& root = "/");

// RDMA ports, network interfaces and GPUs; `gpus`: nothing, CUDA is not in this build.
Findings look_at_devices(const std::filesystem::path& sysfs, const std::optional<Gpus>& gpus);

// GPUs and network interfaces on the PCI bus, by sysfs: each needs a driver. `gpus_seen`: how many `by`
// sees; nothing: do not compare, because CUDA is not in this build, or CUDA_VISIBLE_DEVICES hides GPUs.
Findings look_at_pci(const std::filesystem::path& sysfs, std::optional<std::size_t> gpus_seen,
                     const std::string& by = "CUDA");

// As text: "mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR)"; `sysfs` is /sys.
std::vector<std::string> rdma_ports(const std::filesystem::path& sysfs);

// The folder and the kind of each file system in /proc/self/mounts, where "\\040" stands for a space in a name.
std::vector<std::pair<std::string, std::string>> mounts_in(const std::filesystem::path& file);

// Disks and file servers that are mounted, by `root`/proc/self/mounts. File servers must answer by then; none can hang
// this.
Finding look_at_mounts(const std::filesystem::path& root, std::chrono::milliseconds timeout = std::chrono::seconds(2));

// What a site file says of its nodes (../reference.md).
// Throws std::runtime_error for an unknown member, and for a value of another type.
void check_inventory(const nlohmann::json& wanted);

// One finding, "inventory", by the files below `root`. GPUs are those of NVIDIA's driver.
Finding look_at_inventory(const nlohmann::json& wanted, const std::filesystem::path& root = "/");

}  // namespace node_check
