// paths.hpp: which node, link or path of a cluster is bad?
#pragma once

#include "cluster.hpp"
#include "path_faults.hpp"

#include <ostream>
#include <string>
#include <vector>

namespace image_check {

// Two RDMA devices with an active port or more, by `sysfs`: measured one by one, so that a dead one of eight shows.
// Else none.
std::vector<std::string> rdma_rails(const std::filesystem::path& sysfs = "/sys");

// What part of a good pair's bandwidth a pair must have if each node has so many network devices: a pair that lacks
// one of eight has 7/8, so 15/16. Of one device half: noise and topology explain less.
double least_share(std::size_t devices);

struct PathsOptions {
  ClusterOptions cluster;
  std::string json;                // file for a line per pair, and one per fault
  std::vector<std::string> rails;  // network interfaces or HCAs, each measured separately; none: rdma_rails()
  std::string topology;            // file, as read_topology() takes it; "": the switches are unknown
  double at_least = 0;             // percent of a good pair's bandwidth; 0: least_share()
};
// Measures with chapter 02's alltoall_perf: all processes of one node send to all of the other, over all devices.
// Returns exit_right, or exit_wrong, naming faults and rails on standard error. Throws multinode::UsageError for
// less than three nodes.
int paths(const PathsOptions& options, std::ostream& out);

}  // namespace image_check
