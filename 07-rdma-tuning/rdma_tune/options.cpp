#include "options.hpp"

#include <multinode/check.hpp>
#include <multinode/program_options.hpp>

#include <charconv>

namespace rdma {

namespace po = boost::program_options;
using multinode::UsageError;

po::options_description SystemOptions::description() {
  po::options_description known("What to read, and where to write it");
  known.add_options()("sysfs", po::value(&sysfs)->default_value(sysfs), "the folder to read in place of /sys")(
      "json", po::value(&json), "file to write a JSON object to");
  return known;
}

po::options_description WantedOptions::description() {
  po::options_description known("Which GID is wanted");
  const auto set_family = [this](const std::string& name) {
    if (name != "auto" && name != "ipv4" && name != "ipv6")
      throw UsageError("--family must be auto, ipv4 or ipv6, not '" + name + "'");
    wanted.family = name == "ipv6" ? Family::ipv6 : name == "ipv4" ? Family::ipv4 : Family::automatic;
  };
  const auto set_roce = [this](const std::string& version) {
    if (version != "1" && version != "2") throw UsageError("--roce must be 1 or 2, not '" + version + "'");
    wanted.roce_v1 = version == "1";
  };
  known.add_options()("family", po::value<std::string>()->default_value("auto")->notifier(set_family),
                      "addresses to take: ipv4, ipv6, or auto: IPv6 only where there is no IPv4")(
      "roce", po::value<std::string>()->default_value("2")->notifier(set_roce), "RoCE version: 1 or 2")(
      "subnet", po::value<std::string>()->notifier([this](const auto& text) { wanted.subnet = Subnet::parse(text); }),
      "only addresses of this network, as 10.0.0.0/16")("device", po::value(&wanted.devices)->composing(),
                                                        "only this device, by its exact name; may be repeated")(
      "vlan", po::bool_switch(&wanted.vlan), "GIDs of VLAN interfaces too");
  return known;
}

NcclVersion parse_nccl_version(const std::string& text, const std::string& option) {
  int parts[3] = {0, 0, NcclVersion::newest_patch};
  const char* at = text.data();
  const char* const end = at + text.size();
  int count = 0;
  while (count < 3) {
    const auto [after, error] = std::from_chars(at, end, parts[count]);
    if (error != std::errc() || parts[count] < 0) break;
    ++count;
    at = after;
    if (at == end || *at != '.') break;
    ++at;
  }
  if (at != end || count < 2 || text.back() == '.')
    throw UsageError(option + " must be a version such as 2.28 or 2.26.2, not '" + text + "'");
  return {parts[0], parts[1], parts[2]};
}

}  // namespace rdma
