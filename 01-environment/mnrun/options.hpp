// options.hpp: mnrun's command line.
#pragma once

#include <multinode/launch.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace mnrun {

struct Options {
  int nodes = 1;
  std::optional<int> node_rank;                 // none: numbered by arrival
  std::string processes;                        // a number, gpu, cpu or auto
  std::optional<multinode::Endpoint> endpoint;  // where the agents meet; none: any free port on loopback
  bool host_is_node_0 = true;                   // else: the node that has the endpoint's address
  std::string master_address;                   // for the program, where there is one node; "": loopback
  std::uint16_t master_port = 0;                // likewise; 0: any free one
  std::string run_id;                           // "": node 0 chooses
  multinode::SecretSource secret;               // that the agents of several nodes share
  std::string role = "default";
  int max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};
  std::string log_dir;
  int tee = 0;  // 1 stdout, 2 stderr, 3 both also to log files
  bool no_prefix = false;
  std::vector<std::string> command;
};

// Without a value: --help was given, and the help has been printed. The defaults are
// those of the batch system's or the pod's variables in `environment`. Throws UsageError.
std::optional<Options> parse(int argc, const char* const* argv, const multinode::Environment& environment);

// The number of processes that --nproc-per-node means on this node. Throws UsageError, or HardwareAbsent if it is `gpu`
// and there is none.
int count_processes(const std::string& text);

}  // namespace mnrun
