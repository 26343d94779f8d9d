#include "commands.hpp"
#include "exports.hpp"
#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/net/address.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

namespace rdma {

namespace po = boost::program_options;

namespace {

// One of a node's processes does, so that a warning comes once.
bool speaks_for_node() {
  try {
    return multinode::read_launch(multinode::current_environment()).local_rank.value == 0;
  } catch (const multinode::UsageError&) {
    return true;
  }
}

}  // namespace

int run_exec(int argc, const char* const* argv) {
  const char* const* const end = argv + argc;
  const char* const* const dashes = std::find(argv, end, std::string_view("--"));
  std::string sysfs = "/sys", require;
  Wanted wanted;
  std::optional<NcclVersion> given;
  bool sockets = false, verbose = false;
  po::options_description known(
      "rdma_tune exec [options] -- COMMAND...: runs the command with this node's settings for NCCL and UCX.\n"
      "Variables that are set already keep their values");
  known.add_options()(
      "nccl", po::value<std::string>()->notifier([&](const auto& text) { given = parse_nccl_version(text); }),
      "version of NCCL, which counts where the ports' indices differ (default: that of the libnccl that the command "
      "loads)")("require", po::value(&require), "rdma: exit with status 1 where no RDMA port would be used")(
      "sockets", po::bool_switch(&sockets), "settings for sockets, even with RDMA here: to compare")(
      "verbose,v", po::bool_switch(&verbose), "print on standard error which variables are set, and which are kept");
  known.add(wanted_options(wanted)).add(sysfs_option(sysfs));
  if (!multinode::parse_command_line(static_cast<int>(dashes - argv), argv, known, true)) return multinode::exit_right;
  if (!require.empty() && require != "rdma")
    throw multinode::UsageError("--require must be rdma, not '" + require + "'");
  if (dashes == end || dashes + 1 == end)
    throw multinode::UsageError("exec needs a command, after --: rdma_tune exec -- ./train");

  wanted.site = read_site(sysfs);
  const System system = read_system(sysfs);
  const Choice choice = choose(system, wanted);
  const bool no_rdma = !choice.has_rdma() && !sockets;
  if (no_rdma && (wanted.subnet || !wanted.devices.empty()) && !system.devices.empty())
    throw multinode::UsageError("exec: --subnet and --device fit no port" +
                                std::string(wanted.subnet && wanted.subnet->bits == 128
                                                ? " (is the mask of " + wanted.subnet->text() + " missing?)"
                                                : "") +
                                ": " + choice.why_no_rdma(system));
  const NcclVersion version = given                  ? *given
                              : shares_index(choice) ? NcclVersion{}
                                                     : nccl_of(dashes[1]).value_or(NcclVersion{});
  const std::string node = "rdma_tune exec: " + multinode::host_name() + ": ";
  std::string added, kept, remarks;
  // A value in one of NCCL's configuration files was set on purpose, too.
  multinode::Environment variables = nccl_environment(sysfs);
  const bool is_described = variables.contains("NCCL_IB_ADDR_FAMILY") || variables.contains("NCCL_IB_ADDR_RANGE") ||
                            variables.contains("NCCL_IB_ROCE_VERSION_NUM");
  for (const Export& one : sockets ? socket_exports(system, choice) : exports(system, choice, version)) {
    // An index would overrule the user's description of the GID, and be wrong for other ports of the user's list.
    if (one.name == "NCCL_IB_GID_INDEX" &&
        (is_described || !std::ranges::all_of(nccl_ports(system, version, variables), [&](const NcclPort& port) {
           return std::ranges::find(choice.ports, port.port, &PortChoice::port)->usable;
         })))
      continue;
    const auto [variable, is_new] = variables.try_emplace(one.name, one.value);
    (is_new ? added : kept) += " " + one.name + "=" + variable->second;
    if ((one.name == "NCCL_IB_GID_INDEX" || one.name == "NCCL_IB_HCA") && variable->second != one.value)
      remarks += node + "warning: " + one.name + "=" + variable->second + " stays; rdma_tune: " + one.value + "\n";
    if (!one.remark.empty()) remarks += node + one.name + ": " + one.remark + "\n";
    if (is_new) setenv(one.name.c_str(), one.value.c_str(), 1);
  }
  if (speaks_for_node()) {
    if (const Site& site = choice.wanted.site; !site.file.empty()) std::cerr << node + site.line() + "\n";
    for (const std::string& warning : choice.warnings)
      if (!sockets && (!no_rdma || warning.starts_with("left out"))) std::cerr << node + "warning: " + warning + "\n";
    if (no_rdma) std::cerr << node + choice.why_no_rdma(system) + "\n";
    std::cerr << remarks;
  }
  if (verbose) {
    for (const std::string& problem : system.problems) std::cerr << node + problem + "\n";
    std::cerr << node + (added.empty() ? "nothing to set" : "set" + added) +
                     (kept.empty() ? "" : "; was set before:" + kept) + "\n";
  }
  const bool uses_sockets = sockets || nccl_ports(system, version, variables).empty();
  if (!require.empty() && (no_rdma || uses_sockets)) {
    std::cerr << node + "--require rdma: " +
                     (uses_sockets ? "NCCL " + version.text() + " would use sockets" : "no port is usable") +
                     ": the command is not started\n";
    return multinode::exit_wrong;
  }

  execvp(dashes[1], const_cast<char* const*>(dashes + 1));
  const int error = errno;
  std::cerr << std::string("rdma_tune exec: cannot run ") + dashes[1] + ": " + std::strerror(error) + "\n";
  return error == ENOENT ? 127 : 126;
}

}  // namespace rdma
