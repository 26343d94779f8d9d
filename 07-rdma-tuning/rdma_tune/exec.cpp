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
#include <string>
#include <string_view>

namespace rdma {

namespace po = boost::program_options;

int run_exec(int argc, const char* const* argv) {
  const char* const* const end = argv + argc;
  const char* const* const dashes = std::find(argv, end, std::string_view("--"));
  std::string sysfs = "/sys";
  Wanted wanted;
  NcclVersion version;
  bool by_index = false, sockets = false, verbose = false;
  po::options_description known(
      "rdma_tune exec [options] -- COMMAND...: runs the command with this node's settings for NCCL and UCX.\n"
      "Variables that are set already keep their values");
  known.add_options()("nccl", nccl_version(version), "version of NCCL (default: 2.28)")(
      "index", po::bool_switch(&by_index),
      "set NCCL_IB_GID_INDEX even where NCCL finds the GID without settings, or by family, version and range")(
      "sockets", po::bool_switch(&sockets), "settings for sockets, even with RDMA here: to compare")(
      "verbose,v", po::bool_switch(&verbose), "print on standard error which variables are set, and which are kept")(
      "sysfs", po::value(&sysfs)->default_value(sysfs), "the folder to read in place of /sys");
  known.add(wanted_options(wanted));
  if (!multinode::parse_command_line(static_cast<int>(dashes - argv), argv, known, true)) return multinode::exit_right;
  if (dashes == end || dashes + 1 == end)
    throw multinode::UsageError("exec needs a command, after --: rdma_tune exec -- ./train");

  const System system = read_system(sysfs);
  const Choice choice = choose(system, wanted);
  const std::string node = "rdma_tune exec: " + multinode::host_name() + ": ";
  std::string added, kept;
  // A value in one of NCCL's configuration files was set on purpose, too.
  multinode::Environment variables = with_nccl_files(multinode::current_environment(), sysfs, version);
  for (const Export& one : sockets ? socket_exports(system, choice) : exports(system, choice, version, by_index)) {
    const auto [variable, is_new] = variables.try_emplace(one.name, one.value);
    (is_new ? added : kept) += " " + one.name + "=" + variable->second;
    if (verbose && !one.remark.empty()) std::cerr << node + one.name + ": " + one.remark + "\n";
    if (is_new) setenv(one.name.c_str(), one.value.c_str(), 1);
  }
  if (verbose) {
    for (const std::string& problem : system.problems) std::cerr << node + problem + "\n";
    for (const std::string& warning : choice.warnings) std::cerr << node + warning + "\n";
    if (!choice.has_rdma()) std::cerr << node + choice.without_rdma(system) + "\n";
    std::cerr << node + (added.empty() ? "nothing to set" : "set" + added) +
                     (kept.empty() ? "" : "; was set before:" + kept) + "\n";
  }
  if (choice.has_rdma() && !sockets)
    if (const std::string guilty = conflicting_variables(system, choice, version, variables); !guilty.empty())
      std::cerr << node + "warning: " + guilty + "\n";

  execvp(dashes[1], const_cast<char* const*>(dashes + 1));
  const int error = errno;
  std::cerr << std::string("rdma_tune exec: cannot run ") + dashes[1] + ": " + std::strerror(error) + "\n";
  return error == ENOENT ? 127 : 126;
}

}  // namespace rdma
