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

struct Launch {
  std::string launcher = "none";  // as people call it: "Open MPI", "torchrun", "mnrun", "srun", "none" ...

  Given<int> rank{0, ""};
  Given<int> world_size{1, ""};
  Given<int> local_rank{0, ""};          // rank among the processes on this node
  std::optional<Given<int>> local_size;  // number of processes on this node, where the launcher says it
  std::optional<Given<int>> node_rank;   // 0 .. node_count-1, likewise
  std::optional<Given<int>> node_count;

  // The meeting place, where the launcher or its node list gives one. Port 0: not given.
  Given<std::string> master_address;
  Given<std::uint16_t> master_port;

  bool under_mpi = false;    // MPI_Init finds the other ranks: started by mpirun, srun with PMI(x), mpiexec ...
  bool agent_store = false;  // torchrun's agent serves a TCPStore at the master endpoint
  std::optional<Given<Endpoint>> launcher_store;  // mnrun's agent, or the cluster's head, serves a TcpStore here
  std::optional<Given<int>> report_fd;            // write JSON lines to this descriptor: the launcher reads them
  bool one_per_node = false;                      // a pod or a batch node, not a launched process: rank is the node's

  std::string run_id;     // tells runs apart that share a store; "" where the launcher has none
  int restart_count = 0;  // how often this run was started again
};

// Reads the environment by the table in launch.cpp: a row a launcher, the innermost launcher wins. Throws UsageError,
// naming variable and value, for text where a number belongs, for RANK >= WORLD_SIZE, and for whatever else contradicts
// itself. Several ranks without a meeting place are no error here: --rendezvous may give one.
Launch read_launch(const Environment& environment);

// The launchers of that table, the innermost first.
std::vector<std::string_view> launchers();

// What a batch system says about this node, for programs that start processes (mnrun): from Slurm, PBS, LSF, BCP
// replicas, Kubeflow and Run:ai pods, AWS Batch.
struct Nodes {
  std::string source = "none";
  std::optional<Given<int>> node_rank;
  std::optional<Given<int>> node_count;
  std::optional<Given<int>> processes_per_node;
  Given<std::string> master_address;  // "" where unknown
  Given<std::uint16_t> master_port;   // 0 where unknown
};
Nodes read_nodes(const Environment& environment);

// The variables by which read_launch knows a process launcher, and their companions (a name that ends in * stands for
// all with that beginning). A launcher takes them out of its children's environment, so that the inner one is believed.
std::span<const std::string_view> process_variables();

// "run id/restart count": the prefix under which a start of a run keeps its keys in a store.
std::string generation(const Launch& launch);

// "gpu[1-3,07-08],login" -> gpu1 gpu2 gpu3 gpu07 gpu08 login (Slurm's syntax). Throws UsageError for what is not such a
// list, or names more than 65,536 hosts.
std::vector<std::string> expand_host_list(std::string_view text);

// "2(x3),1" -> 2 2 2 1 (SLURM_STEP_TASKS_PER_NODE). Throws UsageError.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace multinode
