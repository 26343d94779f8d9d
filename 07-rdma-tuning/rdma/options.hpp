// options.hpp: what the command lines of rdma_tune's subcommands share.
#pragma once

#include "choice.hpp"

#include <boost/program_options.hpp>

#include <string>
#include <utility>

namespace rdma {

struct SystemOptions {
  std::string sysfs = "/sys";  // --sysfs DIR
  std::string json;            // --json FILE

  boost::program_options::options_description description();
};

struct WantedOptions {  // --family, --roce, --subnet, --device, --vlan
  Wanted wanted;

  boost::program_options::options_description description();
};

// "2.28", "2.26.2" -> {2, 26, 2}; throws UsageError naming `option`.
struct NcclVersion {
  int major = 2, minor = 28, patch = 0;
  auto operator<=>(const NcclVersion&) const = default;
};
NcclVersion parse_nccl_version(const std::string& text, const std::string& option);

}  // namespace rdma
