// nccl_gid.hpp: the table's column of NCCL: the ports that NCCL 2.20 to 2.29 uses, and the GID index of each. It
// restates functions of NCCL's net_ib.cc; test/gid_answers_test.cpp compares it with their recorded answers.
#pragma once

#include "system.hpp"

#include <multinode/launch.hpp>

#include <string>
#include <vector>

namespace rdma {

struct NcclVersion {
  static constexpr int newest_patch = 1'000'000;
  int major = 2, minor = 28, patch = newest_patch;
  auto operator<=>(const NcclVersion&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 is mistaken
  std::string text() const;
};

struct NcclPort {
  const Device* device;
  const Port* port;
  std::string takes;  // "3", "fails", may_fail; of InfiniBand, where the index does not count: "used"
};
// NCCL reads a variable that it has not initialized, so what it takes depends on the compiler and on earlier calls.
inline constexpr const char* may_fail = "may fail: set the index";

// The ports that NCCL uses with these variables; none if it uses sockets.
std::vector<NcclPort> nccl_ports(const System& system, NcclVersion version, const multinode::Environment& variables);

}  // namespace rdma
