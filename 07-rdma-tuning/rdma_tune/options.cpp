#include "options.hpp"

#include <multinode/base/check.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
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

NcclVersion parse_nccl_version(const std::string& text) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex(R"((\d{1,6})\.(\d{1,6})(\.(\d{1,6})(-\d+)?)?(\+cuda[\d.]+)?)")))
    throw UsageError("--nccl must be a version such as 2.28 or 2.26.2, not '" + text + "'");
  return {std::stoi(parts[1]), std::stoi(parts[2]), parts[4].matched ? std::stoi(parts[4]) : NcclVersion::newest_patch};
}

std::optional<NcclVersion> nccl_of(const std::string& program) {
  constexpr const char* script = R"(
program=$(command -v "$RDMA_TUNE_PROGRAM") && above=${program%/*}/..
for file in $(ldd "$program" | sed -n 's,.*libnccl.so.2 => \(/[^ ]*\).*,\1,p') \
  "$above"/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2 "$above"/lib/libnccl.so.2 \
  $(echo "$LD_LIBRARY_PATH" | tr : '\n' | sed 's,$,/libnccl.so.2,') /usr/lib/*-linux-gnu/libnccl.so.2 /usr/lib64/libnccl.so.2; do
  grep -aom1 'NCCL version 2\.[0-9]*\.[0-9][0-9]*' "$file" && exit
done)";
  setenv("RDMA_TUNE_PROGRAM", program.c_str(), 1);
  const std::unique_ptr<FILE, int (*)(FILE*)> shell(popen(("exec 2>/dev/null" + std::string(script)).c_str(), "r"),
                                                    pclose);
  unsetenv("RDMA_TUNE_PROGRAM");
  char line[64] = "";
  if (!shell || !fgets(line, sizeof line, shell.get())) return {};
  const std::string text(line);
  return parse_nccl_version(text.substr(13, text.find('\n') - 13));
}

}  // namespace rdma
