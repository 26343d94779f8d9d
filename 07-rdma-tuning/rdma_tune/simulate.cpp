#include "simulate.hpp"

#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>

namespace rdma {

namespace po = boost::program_options;
using multinode::Environment;

namespace {

constexpr const char* known_variables[] = {
    "NCCL_IB_DISABLE",     "NCCL_NET",           "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",         "NCCL_IB_GID_INDEX",  "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROUTABLE_FLID_GID_INDEX"};

Comparison::Row compare_port(const PortChoice& port, const NcclGid* nccl) {
  const auto wrong = [&](const std::string& why) { return Comparison::Row{&port, nccl, "WRONG: " + why, false}; };
  if (!nccl) return wrong("not used");
  if (!nccl->failure.empty()) return wrong("NCCL fails");
  if (!port.usable) return wrong("rdma_tune leaves this port out: " + port.reason);
  if (nccl->indices.size() > 1) return wrong("undefined");
  if (port.chosen < 0 || nccl->index() == port.chosen) return {&port, nccl, "the same", true};
  const auto gid = std::ranges::find(port.port->gids, nccl->index(), &Gid::index);
  return wrong(gid == port.port->gids.end()
                   ? "an empty slot"
                   : port.gids[static_cast<std::size_t>(gid - port.port->gids.begin())].reason);
}

// The first later version that answers this port in one way; "": none.
std::string fixed_in(const Port& port, NcclVersion version, const Environment& variables) {
  for (const NcclVersion later : {NcclVersion{2, 21, 5}, {2, 22, 3}, {2, 23, 4}, {2, 26, 2}, {2, 30, 7}})
    if (later > version && nccl_gid(port, later, variables).index() >= 0) return later.text();
  return "";
}

}  // namespace

Comparison compare_with_nccl(const System& system, const Choice& choice, NcclVersion version,
                             const Environment& variables) {
  Comparison result{nccl_node(system, version, variables), {}, true};
  for (const PortChoice& port : choice.ports) {
    const NcclGid* const nccl = result.node.find(port.port);
    if (!port.usable && !nccl) continue;
    result.rows.push_back(compare_port(port, nccl));
    result.same &= result.rows.back().same;
  }
  return result;
}

std::string conflicting_variables(const System& system, const Choice& choice, NcclVersion version,
                                  const Environment& variables) {
  if (compare_with_nccl(system, choice, version, variables).same) return "";
  std::vector<std::string> set, guilty;
  Environment without = variables;
  for (const char* name : known_variables) {
    if (!without.erase(name)) continue;
    Environment but_one = variables;
    but_one.erase(name);
    set.push_back(name + ("=" + variables.at(name)));
    if (compare_with_nccl(system, choice, version, but_one).same) guilty.push_back(set.back());
  }
  if (guilty.empty() && compare_with_nccl(system, choice, version, without).same) guilty = set;
  if (guilty.empty()) return "";
  return multinode::join(guilty, ", ") + (guilty.size() > 1 ? " make" : " makes") + " NCCL " + version.text() +
         " use other ports or GIDs than rdma_tune: unset " + (guilty.size() > 1 ? "them" : "it");
}

int run_simulate(int argc, const char* const* argv) {
  std::string sysfs = "/sys", json_file;
  Wanted wanted;
  NcclVersion version;
  po::options_description known(
      "What NCCL would use; it reads NCCL's variables from the environment and from NCCL's configuration files");
  known.add_options()("nccl", nccl_version(version)->required(), "version of NCCL, as 2.20 or 2.26.2");
  known.add(system_options(sysfs, json_file)).add(wanted_options(wanted));
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  const Environment variables = with_nccl_files(multinode::current_environment(), sysfs, version);

  const System system = read_system(sysfs);
  const Choice choice = choose(system, wanted);
  for (const std::string& problem : system.problems) std::cerr << "rdma_tune: " + problem + "\n";
  const Comparison compared = compare_with_nccl(system, choice, version, variables);
  nlohmann::json json{{"nccl", version.text()},
                      {"network", compared.node.uses_rdma ? "IB" : "Socket"},
                      {"ports", nlohmann::json::array()}};
  multinode::Table table({"device", "port", "right", "NCCL " + version.text(), "why", "verdict"});
  std::vector<std::string> warnings;
  for (const Comparison::Row& row : compared.rows) {
    const PortChoice& port = *row.port;
    const std::string name = port.device->name, number = std::to_string(port.port->number);
    const std::string reason = row.nccl                       ? row.nccl->reason
                               : compared.node.reason.empty() ? "NCCL_IB_HCA"
                                                              : compared.node.reason;
    table.add({name, number,
               !port.usable      ? "not used"
               : port.chosen < 0 ? "-"
                                 : std::to_string(port.chosen),
               row.nccl ? row.nccl->text() : "not used", reason, row.verdict});
    json["ports"].push_back({{"device", name},
                             {"port", port.port->number},
                             {"right", port.chosen},
                             {"nccl", row.nccl ? row.nccl->index() : -1},
                             {"possible", row.nccl ? row.nccl->indices : std::vector<int>()},
                             {"reason", reason},
                             {"same", row.same}});
    if (row.nccl && row.nccl->index() < 0) {
      const std::string later = fixed_in(*port.port, version, variables);
      warnings.push_back(name + ":" + number + ": NCCL " + version.text() +
                         (row.nccl->indices.empty() ? " fails" : " may take any of these") +
                         (later.empty() ? "; no version up to 2.30.7 fixes this" : "; NCCL " + later + " fixes this"));
    }
  }
  multinode::JsonLines(json_file).write(json);
  if (!compared.node.uses_rdma)
    std::cout << "NCCL " + version.text() + " does not use RDMA: " + compared.node.reason + "\n";
  if (!compared.rows.empty()) table.print(std::cout);
  if (compared.same) return multinode::exit_right;
  if (const std::string guilty = conflicting_variables(system, choice, version, variables); !guilty.empty())
    warnings.push_back(guilty);
  else
    warnings.push_back("NCCL " + version.text() +
                       " would not use the right ports and GIDs without settings: see rdma_tune exec");
  for (const std::string& warning : warnings) std::cout << "warning: " + warning + "\n";
  return multinode::exit_right;
}

}  // namespace rdma
