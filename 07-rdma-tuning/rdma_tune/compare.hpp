// compare.hpp: compares the RDMA of many nodes and finds the one that differs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rdma {

// The facts of a node, in order: ("mlx5_0:1 rate", "100 Gb/sec (4X EDR)"). A fact that a node does not know is left out
// and makes no difference.
struct NodeFacts {
  std::string node;
  std::vector<std::pair<std::string, std::string>> facts;
};

// From the object that `rdma_tune --json` writes (see table.hpp). Throws std::runtime_error, which says what is wrong
// with the object.
NodeFacts facts_of(const nlohmann::json& node);

struct Difference {
  std::string what;
  struct Value {
    std::string value;
    std::vector<std::string> nodes;  // in the order given
    bool odd = false;                // not that of the majority
  };
  std::vector<Value> values;  // the most frequent one first
  bool majority = false;      // more than half of the nodes that know a value have the first one
};

// The facts whose values differ. Names that occur twice get a number: "node (2)".
std::vector<Difference> differences(std::span<const NodeFacts> nodes);

void print_differences(std::ostream& out, std::span<const NodeFacts> nodes, const std::vector<Difference>& found);

// rdma_tune compare FILE...: files with one or more lines of `rdma_tune --json`. Without a file, under a launcher, each
// rank reads its own node. Returns 1 if something differs.
int run_compare(int argc, const char* const* argv);

}  // namespace rdma
