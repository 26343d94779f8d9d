// check.hpp: what keeps RDMA from working, or from working well, and the command that fixes it; NCCL's other settings,
// each with its reason.
#pragma once

#include "system.hpp"

#include <multinode/launch.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace rdma {

enum class Severity { fine, note, warning, bad, unknown };
std::string text_of(Severity severity);  // "fine", "note", "warning", "BAD", "not seen"

struct CheckResult {
  Severity severity = Severity::fine;
  std::string what;           // "memlock", "uverbs0", "mlx5_0:1 MTU"
  std::string seen;           // "65536 bytes"
  std::string expected = "";  // "unlimited"
  std::string fix = "";       // a command, where to look, or the reason; may be several lines
};

// Where to look; each may be a copy.
struct Places {
  std::filesystem::path sysfs = "/sys", dev = "/dev", proc = "/proc";
  multinode::Environment variables;  // NCCL's, and LD_LIBRARY_PATH
};

// Empty: there is no RDMA device, nothing to check.
std::vector<CheckResult> check(const System& system, const Places& places);

// GPUs next to their devices, NCCL's settings, the network plugin. Empty: no RDMA device can be used.
std::vector<CheckResult> advice(const System& system, const Places& places);

// rdma_tune check, or rdma_tune advise, by argv[0]: 1 if a finding is bad, else 0.
int run_check(int argc, const char* const* argv);

}  // namespace rdma
