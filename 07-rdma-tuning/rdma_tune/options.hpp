// options.hpp: what the command lines of rdma_tune's subcommands share.
#pragma once

#include "choice.hpp"

#include <multinode/options.hpp>

#include <string>
#include <utility>

namespace rdma {

struct SystemOptions {
  std::string sysfs = "/sys";  // --sysfs DIR
  std::string json;            // --json FILE

  boost::program_options::options_description description();
};

struct WantedOptions {  // --family, --subnet, --device, --vlan
  Wanted wanted;

  boost::program_options::options_description description();
};

// "2.26.2", or "2.26" for the newest of these. Throws UsageError that names `option`.
NcclVersion parse_nccl_version(const std::string& text, const std::string& option);

}  // namespace rdma
