#include "paths.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <iostream>
#include <sstream>

namespace image_check {
namespace {

using multinode::UsageError;

// Both libraries' names for "this network only".
Variables rail_variables(const std::string& rail) {
  if (rail.empty()) return {};
  if (std::filesystem::exists("/sys/class/infiniband/" + rail))
    return {{"NCCL_IB_HCA", "=" + rail}, {"UCX_NET_DEVICES", rail + ":1"}};
  return {{"OMPI_MCA_btl_tcp_if_include", rail},
          {"NCCL_SOCKET_IFNAME", "=" + rail},
          {"NCCL_IB_DISABLE", "1"},
          {"UCX_NET_DEVICES", rail}};
}

// The best median of the cycles, at the largest size, in the output of a benchmark whose JSON lines went there, too:
// its rank 0 may be on another host, and its launcher may put something before each line. Other work on the nodes makes
// a cycle slower, and nothing makes it faster than the network.
double largest(const std::string& output) {
  double size = -1, bandwidth = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line.substr(std::min(line.find('{'), line.size())), nullptr, false);
    if (!row.is_object() || !row.contains("busbw_gb_per_s") || row.at("size_bytes").get<double>() < size) continue;
    if (row.at("size_bytes") != size) bandwidth = 0;
    size = row.at("size_bytes");
    bandwidth = std::max(bandwidth, row.at("busbw_gb_per_s").get<double>() * row.at("time_us").get<double>() /
                                        row.at("median_us").get<double>());
  }
  return bandwidth;
}

}  // namespace

std::vector<std::string> rdma_rails(const std::filesystem::path& sysfs) {
  std::vector<std::string> rails;
  for (const multinode::RdmaPort& port : multinode::rdma_ports(sysfs))
    if (port.is_active() && (rails.empty() || rails.back() != port.device)) rails.push_back(port.device);
  if (rails.size() < 2) rails.clear();
  return rails;
}

double least_share(std::size_t devices) { return devices < 2 ? 0.5 : 1 - 0.5 / static_cast<double>(devices); }

int paths(const PathsOptions& options, std::ostream& out) {
  const Cluster cluster = find_cluster(options.cluster);
  if (cluster.nodes.size() < 3)
    throw UsageError("paths: " + std::to_string(cluster.nodes.size()) +
                     " nodes cannot tell which one is bad: name three or more with --hosts");
  const Topology topology =
      options.topology.empty() ? one_switch(cluster.nodes) : read_topology(options.topology, cluster.nodes);
  const bool mpi = cluster.launcher != "mnrun";
  const std::string backend = cluster.gpus > 0 ? "nccl" : mpi ? "mpi" : "gloo";
  if (backend == "gloo" && !options.rails.empty())
    throw UsageError("--rails: mnrun's Gloo does not choose a network: add --launcher mpirun");
  multinode::JsonLines json(options.json);
  // All pairs start at once, from this node.
  const std::chrono::seconds limit(30 + static_cast<long>(cluster.nodes.size()) / 2);

  bool right = true;
  auto rails = options.rails.empty() ? rdma_rails() : options.rails;
  if (options.rails.empty()) rails.insert(rails.begin(), "");                      // as the libraries choose
  const std::string bytes = backend == "nccl" || rails.size() > 1 ? "64M" : "1M";  // fast networks need more
  for (const auto& rail : rails) {
    const std::string over = rail.empty() ? "" : " over " + rail;
    const double at_least =
        options.at_least > 0 ? options.at_least / 100 : least_share(rail.empty() ? rails.size() - 1 : 1);
    auto program = boost::program_options::split_unix(fmt::format(
        "--backend {0} -b {1} -e {1} -n 3 -N 4 --timeout {2} --json /dev/stdout", backend, bytes, limit.count() / 3));
    program.insert(program.begin(), cluster.path_of("02-mpi/alltoall_perf"));
    int round = 0;
    const auto measure = [&](const std::vector<Pair>& of) {
      std::deque<Processes> running;
      std::vector<MemoryFile> outputs(of.size());
      Variables variables = small_machine();
      for (const auto& [name, value] : rail_variables(rail)) variables[name] = value;
      for (const auto& [a, b] : of) {
        running.emplace_back(
            cluster.launch({cluster.nodes[a], cluster.nodes[b]}, cluster.processes_per_node, program, variables),
            variables, outputs[running.size()].path(), limit);
      }
      ++round;
      std::vector<std::optional<double>> bandwidths;
      for (std::size_t i = 0; i < of.size(); ++i) {
        const Outcome outcome = running[i].end();
        const auto names = cluster.nodes[of[i].first] + " - " + cluster.nodes[of[i].second];
        std::optional<double> bandwidth;
        // Of a pair that is so slow that its time is up, what it measured; of one that hangs, the benchmark says so.
        if (outcome.exit_status == 0 || outcome.timed_out) bandwidth = largest(outputs[i].text());
        if (bandwidth == 0) bandwidth.reset();
        bandwidths.push_back(bandwidth);
        out << "round " << round << "  " << names << over << ": "
            << (bandwidth ? fmt::format("{:.3g} GB/s\n", *bandwidth)
                          : (outcome.timed_out ? "TIMED OUT\n" : "FAILED\n") + outputs[i].text())
            << std::flush;
        json.write({{"pair", names},
                    {"round", round},
                    {"over", rail.empty() ? "" : ", " + rail},
                    {"gb_per_s", bandwidth ? nlohmann::json(*bandwidth) : nlohmann::json()}});
      }
      return bandwidths;
    };
    const auto found = find_path_faults(topology, measure, at_least);
    const std::size_t all = topology.nodes * (topology.nodes - 1) / 2;
    out << fmt::format(
        "{} of {} paths{} measured in {} rounds; good ones have {:.3g} GB/s, and vary by {:.0f} %; slow is "
        "below {:.0f} % of that\n",
        found.paths, all, over, found.rounds, found.good, 100 * found.noise, 100 * found.limit);
    if (found.paths < all) out << "a single bad path is seen only if it was measured\n";
    if (found.contention)
      out << "pairs that are slow at once are fast one by one" << over
          << ": the network is oversubscribed, or lacks some of its links\n";
    for (const auto& verdict : found.verdicts) {
      std::cerr << "image-check: " + verdict.text + over + "\n";
      right = false;
      json.write({{"what", "path"},
                  {"ok", false},
                  {"why", verdict.text + over},
                  {"host", verdict.fault == Fault::node ? topology.names[verdict.one[0]] : "the network"},
                  {"confidence", verdict.confidence}});
    }
  }
  if (right) out << "no node, link or path is slower than the others\n";
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace image_check
