// launch.hpp: who am I? Reads what the launcher (mpirun, srun, torchrun, mnrun, a Kubernetes pod ...) put into the
// environment. Nothing else in the project reads these variables.
#pragma once

#include <multinode/endpoint.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace multinode {

using Environment = std::map<std::string, std::string, std::less<>>;

// A copy of this process's environment.
Environment current_environment();

// A value, and the variable that gave it ("" where it follows from others, or is the default).
template <class T>
struct Given {
  T value{};
  std::string variable;
};

// This process's node among the nodes, and where they meet.
struct Nodes {
  std::string source = "none";                   // the batch system, if one says something about the nodes
  std::optional<Given<int>> node_rank;           // 0 .. node_count-1, if the launcher or the batch system says it
  std::optional<Given<int>> node_count;          // likewise
  std::optional<Given<int>> processes_per_node;  // how many to start, likewise
  Given<std::string> master_address;             // "" if unknown
  Given<std::uint16_t> master_port;              // 0 if unknown
};

struct Launch : Nodes {
  std::string launcher = "none";  // as people call it: "Open MPI", "torchrun", "mnrun", "srun", "none" ...

  Given<int> rank{0, ""};
  Given<int> world_size{1, ""};
  Given<int> local_rank{0, ""};          // rank among the processes on this node
  std::optional<Given<int>> local_size;  // number of processes on this node, if the launcher says it

  bool under_mpi = false;    // MPI_Init finds the other ranks: started by mpirun, srun with PMI(x), mpiexec ...
  bool agent_store = false;  // torchrun's agent serves a TCPStore at the master endpoint
  std::optional<Given<Endpoint>> launcher_store;  // mnrun's agent, or the cluster's head, serves a TcpStore here
  std::optional<Given<int>> report_fd;            // write JSON lines to this descriptor: the launcher reads them
  bool one_per_node = false;                      // a pod or a batch node, not a launched process: rank is the node's

  std::string run_id;     // tells runs apart that share a store; "" if the launcher has none
  int restart_count = 0;  // how often this run was started again
};

// Reads the environment by the table in launch.cpp, which has a row for each launcher; the innermost launcher wins.
// Throws UsageError, which names variable and value, for text in place of a number, for RANK >= WORLD_SIZE and for
// other contradictions. Several ranks without a meeting place are no error here: --rendezvous may give one.
Launch read_launch(const Environment& environment);

// The launchers of that table, the innermost first.
std::vector<std::string_view> launchers();

// What the same table says to a program that starts processes (mnrun), in Slurm, PBS and LSF, in BCP replicas, Kubeflow
// and Run:ai pods, and in AWS Batch. Throws UsageError.
Nodes read_nodes(const Environment& environment);

// The variables by which read_launch knows a process launcher, and their companions (a name that ends in * stands for
// all with that beginning). A launcher takes them out of its children's environment, so that the inner one is believed.
std::span<const std::string_view> process_variables();

// "run id/restart count": the prefix under which a start of a run keeps its keys in a store.
std::string generation(const Launch& launch);

}  // namespace multinode
