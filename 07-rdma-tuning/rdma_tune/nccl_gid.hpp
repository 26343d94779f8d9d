// nccl_gid.hpp: the ports that NCCL uses, and the GID index of each, by version and NCCL's variables. It restates the
// functions of NCCL's net_ib.cc; test/gid_answers_test.cpp compares it with recorded answers of those functions.
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
  // Several: NCCL reads a variable that it has not initialized, and any of these may be the answer.
  std::vector<int> indices;
  std::string failure;  // "read types/10: EINVAL", "ibv_query_gid(24)", "SIGSEGV": NCCL fails; there are no indices
  std::string reason;   // how it came to that index, or why it fails

  int index() const { return indices.size() == 1 ? indices.front() : -1; }  // -1: it fails, or several are possible
  std::string text() const;                                                 // "3", "2 or 7", "fails"
};
NcclGid nccl_gid(const Port& port, NcclVersion version, const multinode::Environment& variables);

struct NcclPort {
  const Device* device;
  const Port* port;
  NcclGid gid;
};
struct NcclNode {
  bool uses_rdma = false;
  std::string reason;  // why it does not
  std::vector<NcclPort> ports;

  const NcclGid* find(const Port* port) const;
};
NcclNode nccl_node(const System& system, NcclVersion version, const multinode::Environment& variables);

// Adds the variables that NCCL reads from its configuration files where `variables` lacks them. The files are those of
// the machine that `sysfs` belongs to: /etc/nccl.conf beside /sys. Of this machine also ~/.nccl.conf or NCCL_CONF_FILE.
multinode::Environment with_nccl_files(multinode::Environment variables, const std::filesystem::path& sysfs,
                                       NcclVersion version);

}  // namespace rdma
