// compare.hpp: many nodes' RDMA side by side, and which of them is the odd one.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rdma {

// What a node says of itself, in order: ("mlx5_0:1 rate", "100 Gb/sec (4X EDR)"). What it cannot tell is left out, and
// nobody is accused of it.
struct NodeFacts {
  std::string node;
  std::vector<std::pair<std::string, std::string>> facts;
};

// From the object that `rdma_tune --json` writes (see table.hpp). Throws std::runtime_error, saying what is not as it
// must be.
NodeFacts facts_of(const nlohmann::json& node);

struct Difference {
  std::string what;
  struct Value {
    std::string value;
    std::vector<std::string> nodes;  // in the order given
    bool odd = false;                // not that of the majority
  };
  std::vector<Value> values;  // the most frequent one first
  bool majority = false;      // more than half of the nodes that tell it have the first one
};

// What not all nodes say alike. Names that occur twice get a number: "node (2)".
std::vector<Difference> differences(std::span<const NodeFacts> nodes);

void print_differences(std::ostream& out, std::span<const NodeFacts> nodes, const std::vector<Difference>& found);

// rdma_tune compare FILE..., each with a line, or several, of `rdma_tune --json`; or without a file under a launcher,
// where each rank reads its own node. 1 if something differs.
int run_compare(int argc, const char* const* argv);

}  // namespace rdma
