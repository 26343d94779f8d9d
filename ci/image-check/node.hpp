// node.hpp: is this node fit for a job? One line and an exit status, for the prolog or health check of a scheduler.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace boost::program_options {
class options_description;
}

namespace image_check {

struct NodeOptions {
  std::string budget = "10s";
  bool measure = false;          // memory, arithmetic and GPUs, too: it needs an idle node
  bool drain = false;            // a node that fails, by Slurm's scontrol
  std::string state;             // folder for error counters; "": none
  std::string prometheus, json;  // files for the answer; "": none
  boost::program_options::options_description description();
};

// Runs node_check on this node alone, without a launcher, MPI or network, and ends within the budget, also where the
// node hangs. Writes one line. Returns exit_right; exit_wrong: a finding, or no end; 3: could not test.
int check_node(const NodeOptions& options, std::ostream& out);

}  // namespace image_check
