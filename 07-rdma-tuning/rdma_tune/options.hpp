// options.hpp: what the command lines of rdma_tune's subcommands share.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>

#include <string>

namespace rdma {

// --sysfs DIR and --json FILE
boost::program_options::options_description system_options(std::string& sysfs, std::string& json);

// --family, --subnet, --device
boost::program_options::options_description wanted_options(Wanted& wanted);

// The value of --nccl.
boost::program_options::typed_value<std::string>* nccl_version(NcclVersion& version);

// "2.26.2", or "2.26" for the newest of these. Throws UsageError that names --nccl.
NcclVersion parse_nccl_version(const std::string& text);

}  // namespace rdma
