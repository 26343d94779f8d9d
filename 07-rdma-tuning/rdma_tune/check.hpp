// check.hpp: what keeps RDMA from working, or from working well, and the command that mends it.
#pragma once

#include "system.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rdma {

enum class Severity { fine, note, warning, bad, unknown };
std::string text_of(Severity severity);  // "fine", "note", "warning", "BAD", "not seen"

struct Finding {
  Severity severity = Severity::fine;
  std::string what;           // "memlock", "uverbs0", "mlx5_0:1 MTU"
  std::string seen;           // "65536 bytes"
  std::string expected = "";  // "unlimited"
  std::string mend = "";      // a command, or where to look; may be several lines
};

// Where to look; each may be a copy.
struct Places {
  std::filesystem::path sysfs = "/sys", dev = "/dev", proc = "/proc";
  std::optional<std::string> nccl_ib_tc;  // NCCL_IB_TC of the environment
};

// Empty: there is no RDMA device, nothing to check.
std::vector<Finding> check(const System& system, const Places& places);

// rdma_tune check [--sysfs DIR] [--dev DIR] [--proc DIR] [--json FILE]: 1 if a finding is bad, else 0.
int run_check(int argc, const char* const* argv);

}  // namespace rdma
