// topology.hpp: the tree of switches between nodes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace image_check {

using Nodes = std::vector<std::size_t>;

// A tree of switches. Its vertices are the nodes, in their order, and then the switches; the last one is the root.
struct Topology {
  std::size_t nodes = 0;
  std::vector<std::string> names;  // of all vertices
  Nodes parents;                   // of all vertices; the root is its own
};
Topology one_switch(const std::vector<std::string>& nodes);  // if the switches are unknown
// Slurm's topology.conf. Of its switches those are left that have two or more of `nodes`, or switches, below them.
// Throws multinode::UsageError for a file that cannot be read, a line that is wrong, and a node that it does not name.
Topology read_topology(const std::filesystem::path& file, const std::vector<std::string>& nodes);

}  // namespace image_check
