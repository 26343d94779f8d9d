// findings.hpp: judges what this node has, without loading any library: limits, folders, devices, mounts, and the
// inventory of its site. The probes are in multinode/node.
#pragma once

#include <multinode/node/devices.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace node_check {

struct Finding {
  std::string what;
  nlohmann::json value = {};  // a number where more or less is better, else a number or a text; null: unknown
  std::string unit = {};
  std::string better = "equal";   // or "more", "less"; "same": equal in all processes, whatever it was before
  std::optional<bool> ok = true;  // nothing: what this looks at is not here
  std::string why = {};           // and, where it is wrong, what to do

  // It is wrong for this reason; "": it stays as it is.
  void blame(const std::string& reason) {
    if (!reason.empty()) ok = false, why = reason;
  }
};
using Findings = std::vector<Finding>;

inline Finding absent(std::string what, std::string why) {
  return {std::move(what), nullptr, "", "equal", std::nullopt, std::move(why)};
}

// As a line of results: what rank `rank` found on `host`.
nlohmann::json line_of(const Finding& finding, const std::string& host, int rank);

// The CPU time so far, of this process and the children that it waited for, and of this machine, without and with idle
// time.
struct Ticks {
  double own, busy, all;
};
Ticks ticks();
// What share of this machine's time other processes took since then; -1: the kernel does not count.
double other_work_since(const Ticks& then);

// Undoes what a launcher bound this process to: the node is looked at, not a rank's part of it. What a cpuset withholds
// stays withheld.
void unbind();

std::filesystem::path temporary_folder();  // TMPDIR or /tmp

// The build folder around this program that has 01-environment, 02-mpi ...; "": there is none.
std::filesystem::path folder_of_examples();

// memlock, open files, processes, core size, stack; CPUs and memory. RDMA devices in `root`/sys need memlock.
// `tmp` is the folder of temporary files.
Findings look_at_limits(const std::filesystem::path& root = "/", const std::filesystem::path& tmp = temporary_folder());

// RDMA ports, network interfaces and GPUs. A GPU or network interface on the PCI bus needs a driver, and `gpus` must
// not be empty if GPUs have theirs, unless CUDA_VISIBLE_DEVICES hides them.
Findings look_at_devices(const std::filesystem::path& sysfs, const multinode::Gpus& gpus);

// Disks and file servers that are mounted, by `root`/proc/self/mounts. File servers must answer by then; none can hang
// this.
Finding look_at_mounts(const std::filesystem::path& root, std::chrono::milliseconds timeout = std::chrono::seconds(2));

// Whether this node's own name is looked up in time, whatever the answer is.
Finding look_at_name_service(std::chrono::milliseconds timeout = std::chrono::seconds(2));

// What a site file says of its nodes (../reference.md).
// Throws std::runtime_error for an unknown member, and for a value of another type.
void check_inventory(const nlohmann::json& wanted);

// One finding, "inventory", by the files below `root`. GPUs are those of NVIDIA's driver.
Finding look_at_inventory(const nlohmann::json& wanted, const std::filesystem::path& root,
                          std::chrono::milliseconds timeout = std::chrono::seconds(2));

}  // namespace node_check
