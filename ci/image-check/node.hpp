// node.hpp: is this node fit for a job? One line and an exit status, for the prolog or health check of a scheduler.
#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

namespace boost::program_options {
class options_description;
}

namespace image_check {

struct NodeOptions {
  std::string budget = "10s";
  bool drain = false;                   // a node that fails, by Slurm's scontrol
  std::string site;                     // file with the inventory of this node; "": none
  std::vector<std::string> required{};  // findings that this node must have
  std::string json;                     // file for all findings; "": none
  std::filesystem::path root = "/";     // with the sys and proc to look at
  boost::program_options::options_description description();
};

// Looks at this node alone, without a launcher, MPI, CUDA or network, and ends within the budget, also where the node
// hangs. Writes one line. Returns exit_right; exit_wrong: a finding, or no end; 3: could not test.
int check_node(const NodeOptions& options, std::ostream& out);

// What the process that check_node() starts, and can end, looks at: limits, devices, mounts, inventory.
int look(int argc, char** argv);

}  // namespace image_check
