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

struct WantedOptions {  // --family, --roce, --subnet, --device, --vlan
  Wanted wanted;

  boost::program_options::options_description description();
};

struct NcclVersion {
  static constexpr int newest_patch = 1'000'000;
  int major = 2, minor = 28, patch = newest_patch;
  auto operator<=>(const NcclVersion&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 is mistaken
  std::string text() const;
};

// "2.26.2", or "2.26" for the newest of these. Throws UsageError that names `option`.
NcclVersion parse_nccl_version(const std::string& text, const std::string& option);

}  // namespace rdma
