#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace rdma {

namespace po = boost::program_options;
using multinode::UsageError;

po::options_description sysfs_option(std::string& sysfs) {
  po::options_description known("What to read");
  known.add_options()("sysfs", po::value(&sysfs)->default_value(sysfs), "the folder to read in place of /sys");
  return known;
}

po::options_description wanted_options(Wanted& wanted) {
  po::options_description known("Which GID is wanted");
  known.add_options()("subnet", po::value<std::string>()->notifier([&wanted](const auto& text) {
    wanted.subnet = Subnet::parse(text);
  }),
                      "only addresses of this network, as 10.0.0.0/16, also of a VLAN")(
      "device", po::value(&wanted.devices)->composing(), "only this device, by its exact name; may be repeated");
  return known;
}

namespace {

void add_file(multinode::Environment& variables, const std::filesystem::path& path) {
  std::istringstream file(multinode::read_text(path).value_or(""));
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (line.starts_with('#') || equals == line.npos) continue;
    variables.try_emplace(line.substr(0, equals), line.substr(equals + 1));
  }
}

// A user namespace does not show who owns what comes from outside it, as in rootless containers.
bool is_of_nobody(uid_t owner) {
  return std::to_string(owner) == multinode::read_text("/proc/sys/kernel/overflowuid").value_or("") &&
         multinode::read_text("/proc/self/uid_map").value_or("").find(" 4294967295") == std::string::npos;
}

}  // namespace

NcclVersion parse_nccl_version(const std::string& text) {
  const std::string numbers = text.substr(0, text.find_first_of("-+"));
  NcclVersion version;
  char more = 0;
  const int count =
      std::sscanf(numbers.c_str(), "%6d.%6d.%6d%c", &version.major, &version.minor, &version.patch, &more);
  if (count < 2 || count > 3 || numbers.ends_with('.') || numbers.find_first_not_of("0123456789.") != numbers.npos)
    throw UsageError("--nccl must be a version such as 2.28 or 2.26.2, not '" + text + "'");
  return version;
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
  const std::string text = output_of(script);
  unsetenv("RDMA_TUNE_PROGRAM");
  if (text.empty()) return {};
  return parse_nccl_version(text.substr(13, text.find('\n') - 13));
}

Site read_site(const std::filesystem::path& sysfs) {
  const std::filesystem::path machine = machine_of(std::filesystem::absolute(sysfs));
  const char* const named = std::getenv("RDMA_TUNE_SITE");
  Site site{.file = named ? named : machine.empty() ? "" : machine / "etc/multinode/rdma.conf"};
  if (site.file.empty() || (!named && !multinode::is_there(site.file))) return {};
  multinode::ForeignFile file(site.file, 64 << 10, multinode::Links::followed);
  std::istringstream text(file.text());
  const multinode::Descriptor opened(file.release());
  struct stat facts {};
  multinode::check_errno(::fstat(opened.get(), &facts), "fstat");
  const std::string folder = multinode::why_not_own(site.file.has_parent_path() ? site.file.parent_path() : ".");
  const bool is_hidden = !named && is_of_nobody(facts.st_uid);  // in the default place it is of who made the container
  if ((facts.st_uid != 0 && facts.st_uid != ::geteuid() && !is_hidden) || (facts.st_mode & (S_IWGRP | S_IWOTH)) ||
      !folder.empty())
    throw UsageError(site.file.string() + ": another user can write to it, so rdma_tune does not read it: give it to " +
                     "root or to yourself (chown), and chmod go-w it and its folder");
  int number = 0;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        site.file.string() + ":" + std::to_string(number) + ": " + why +
        "; a line is 'use' or 'leave', then networks (10.1.0.0/16) or devices (mlx5_bond_*); or 'pkey', then 0x8012");
  };
  for (std::string line; ++number, std::getline(text, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind, name;
    if (!(words >> kind)) continue;
    if (kind == "pkey") {
      const std::string given = words >> name ? name : "";
      char* end = nullptr;
      site.pkey = static_cast<unsigned>(std::strtoul(given.c_str(), &end, 16));
      if (!given.starts_with("0x") || *end || !(*site.pkey & 0x7fff) || *site.pkey > 0xffff || words >> name)
        refuse("'" + multinode::printable(given) + "' is not a P_Key such as 0x8012");
      continue;
    }
    if (kind != "use" && kind != "leave") refuse("'" + multinode::printable(kind) + "' is neither use nor leave");
    if (!(words >> name)) refuse(kind + " names nothing");
    do {
      const std::string shown = multinode::printable(name);
      std::optional<Subnet> network;
      if (name.find_first_of("/:") != name.npos || std::ranges::count(name, '.') == 3) try {
          network = Subnet::parse(name.find('/') == name.npos ? name + "/" : name);
        } catch (const UsageError&) {
          refuse("'" + shown + "' is not a network with its mask");
        }
      site.rules.push_back({kind == "use", shown, network, number});
    } while (words >> name);
  }
  return site;
}

multinode::Environment nccl_environment(const std::filesystem::path& sysfs) {
  multinode::Environment variables = multinode::current_environment();
  const std::filesystem::path machine = machine_of(sysfs);
  if (const auto named = variables.find("NCCL_CONF_FILE"); named != variables.end())
    add_file(variables, named->second);
  else if (const auto home = variables.find("HOME"); machine == "/" && home != variables.end())
    add_file(variables, std::filesystem::path(home->second) / ".nccl.conf");
  if (!machine.empty()) add_file(variables, machine / "etc/nccl.conf");
  return variables;
}

}  // namespace rdma
