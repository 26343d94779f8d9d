// nccl_gid.hpp: the ports that NCCL uses, and the GID index of each, by version and NCCL's variables. It restates the
// functions of NCCL's net_ib.cc from 2.20 on; test/gid_answers_test.cpp compares it with their recorded answers.
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

// What NCCL does with a port.
struct NcclGid {
  int index = -1;            // -1: it fails
  std::string failure = "";  // "read types/10: EINVAL", "ibv_query_gid(24)", "SIGSEGV", or:
  // NCCL reads a variable that it has not initialized, so what it takes depends on the compiler and on earlier calls.
  static constexpr const char* may_fail = "may fail: set the index";
};
NcclGid nccl_gid(const Port& port, NcclVersion version, const multinode::Environment& variables);

struct NcclPort {
  const Device* device;
  const Port* port;
  NcclGid gid;
};
// The ports that NCCL uses; none if it uses sockets.
std::vector<NcclPort> nccl_ports(const System& system, NcclVersion version, const multinode::Environment& variables);
const NcclGid* find_gid(const std::vector<NcclPort>& ports, const Port* port);  // null: NCCL does not use the port

// Adds the variables that NCCL reads from its configuration files where `variables` lacks them. The files are those of
// the machine that `sysfs` belongs to: /etc/nccl.conf beside /sys. Of this machine also ~/.nccl.conf or NCCL_CONF_FILE.
multinode::Environment with_nccl_files(multinode::Environment variables, const std::filesystem::path& sysfs,
                                       NcclVersion version);

}  // namespace rdma
