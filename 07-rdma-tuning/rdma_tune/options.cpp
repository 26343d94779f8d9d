#include "options.hpp"

#include <multinode/base/check.hpp>
#include <regex>

namespace rdma {

namespace po = boost::program_options;
using multinode::UsageError;

po::options_description system_options(std::string& sysfs, std::string& json) {
  po::options_description known("What to read, and where to write it");
  known.add_options()("sysfs", po::value(&sysfs)->default_value(sysfs), "the folder to read in place of /sys")(
      "json", po::value(&json), "file to write a JSON object to");
  return known;
}

po::options_description wanted_options(Wanted& wanted) {
  po::options_description known("Which GID is wanted");
  const auto set_family = [&wanted](const std::string& name) {
    if (name != "auto" && name != "ipv4" && name != "ipv6")
      throw UsageError("--family must be auto, ipv4 or ipv6, not '" + name + "'");
    wanted.family = name == "ipv6" ? Family::ipv6 : name == "ipv4" ? Family::ipv4 : Family::automatic;
  };
  known.add_options()("family", po::value<std::string>()->default_value("auto")->notifier(set_family),
                      "addresses to take: ipv4, ipv6, or auto: IPv6 only where there is no IPv4")(
      "subnet",
      po::value<std::string>()->notifier([&wanted](const auto& text) { wanted.subnet = Subnet::parse(text); }),
      "only addresses of this network, as 10.0.0.0/16, also of a VLAN")(
      "device", po::value(&wanted.devices)->composing(), "only this device, by its exact name; may be repeated");
  return known;
}

po::typed_value<std::string>* nccl_version(NcclVersion& version) {
  return po::value<std::string>()->notifier([&version](const auto& text) { version = parse_nccl_version(text); });
}

NcclVersion parse_nccl_version(const std::string& text) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex(R"((\d{1,6})\.(\d{1,6})(\.(\d{1,6}))?)")))
    throw UsageError("--nccl must be a version such as 2.28 or 2.26.2, not '" + text + "'");
  return {std::stoi(parts[1]), std::stoi(parts[2]), parts[4].matched ? std::stoi(parts[4]) : NcclVersion::newest_patch};
}

}  // namespace rdma
