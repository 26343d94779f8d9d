// diagnosis.hpp: what keeps RDMA from working, or from working well, and the command that fixes it.
#pragma once

#include "system.hpp"

#include <multinode/launch.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace rdma {

enum class Severity { fine, note, warning, bad, unknown };
std::string text_of(Severity severity);  // "fine", "note", "warning", "BAD", "not seen"

struct Diagnosis {
  Severity severity = Severity::fine;
  std::string what;           // "memlock", "uverbs0", "mlx5_0:1 MTU"
  std::string seen;           // "65536 bytes"
  std::string expected = "";  // "unlimited"
  std::string fix = "";       // a command, or where to look; may be several lines
};

// Where to look; each may be a copy.
struct Places {
  std::filesystem::path sysfs = "/sys", dev = "/dev", proc = "/proc";
  multinode::Environment variables;  // NCCL's
};

// Empty: there is no RDMA device, and nothing to diagnose.
std::vector<Diagnosis> diagnose(const System& system, const Places& places);

}  // namespace rdma
