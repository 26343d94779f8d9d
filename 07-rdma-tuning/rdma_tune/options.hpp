// options.hpp: what the command lines of rdma_tune's subcommands share.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>

#include <optional>
#include <string>

namespace rdma {

// --sysfs DIR
boost::program_options::options_description sysfs_option(std::string& sysfs);

// --subnet, --device
boost::program_options::options_description wanted_options(Wanted& wanted);

// "2.26.2", "2.28.3+cuda13.0", or "2.26" for the newest of these. Throws UsageError that names --nccl.
NcclVersion parse_nccl_version(const std::string& text);

// Of the libnccl.so.2 that a program loads: one that it is linked with, that of its Python environment, or that of
// LD_LIBRARY_PATH and the system. Nothing: none is found.
std::optional<NcclVersion> nccl_of(const std::string& program);

// The file that RDMA_TUNE_SITE names, else etc/multinode/rdma.conf of the machine that `sysfs` belongs to, if it is
// there. Throws UsageError, which names the file and its line, also if another user can write to it.
Site read_site(const std::filesystem::path& sysfs);

// This process's environment, and the variables that NCCL reads from its configuration files. The files are those of
// the machine that `sysfs` belongs to: /etc/nccl.conf beside /sys. Of this machine also ~/.nccl.conf or NCCL_CONF_FILE.
multinode::Environment nccl_environment(const std::filesystem::path& sysfs);

}  // namespace rdma
