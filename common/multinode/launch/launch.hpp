// launch.hpp: this process's rank, world size and node, from the environment variables of its launcher (mpirun, srun,
// torchrun, mnrun, a Kubernetes pod ...). Nothing else in the project reads these variables.
//
// A table of what each launcher sets, not the launchers' own libraries (PMIx, Slurm's), which a laptop and most images
// lack and which nest badly: the innermost launcher of several wins, and only the variables of all of them tell it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/endpoint.hpp>

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace multinode {

using Environment = std::map<std::string, std::string, std::less<>>;

// A copy of this process's environment.
Environment current_environment();
// What another process was started with; empty if it has ended, or is another user's.
Environment environment_of(pid_t pid);

// A value and the variable that it comes from ("": derived from others, or the default).
template <class T>
struct FromVariable {
  T value{};
  std::string variable;
};

// This process's node, the number of nodes, and the master endpoint at which the processes meet.
struct Nodes {
  std::optional<FromVariable<int>> node_rank;   // 0 .. node_count-1, if the launcher or the batch system sets it
  std::optional<FromVariable<int>> node_count;  // likewise
  // How many to start, likewise: a number, or torchrun's words gpu, cpu and auto, which a launcher counts itself.
  std::optional<FromVariable<std::string>> processes_per_node;
  FromVariable<std::string> master_address;  // "" if unknown
  FromVariable<std::uint16_t> master_port;   // 0 if unknown
};

// Where the secret of a run comes from that no launcher hands to its processes: see store/secret.hpp.
struct SecretSource {
  std::string secret;      // MULTINODE_SECRET
  std::string file;        // MULTINODE_SECRET_FILE, else ~/.multinode/secret; "" without a home
  bool is_default = true;  // the file is not one that the user named
};

struct Launch : Nodes {
  std::string launcher = "none";  // its usual name: "Open MPI", "torchrun", "mnrun", "srun", "none" ...

  FromVariable<int> rank{0, ""};
  FromVariable<int> world_size{1, ""};
  FromVariable<int> local_rank{0, ""};          // rank among the processes on this node
  std::optional<FromVariable<int>> local_size;  // number of processes on this node, if the launcher sets it

  bool under_mpi = false;    // MPI_Init finds the other ranks: started by mpirun, srun with PMI(x), mpiexec ...
  bool agent_store = false;  // torchrun's agent serves a TCPStore at the master endpoint
  std::optional<FromVariable<StorePlace>> launcher_store;  // mnrun's agent, or `cluster run`, serves a TcpStore here

  SecretSource secret_source;

  std::string run_id;  // separates runs that share a store; "" if the launcher has none
  int attempt = 0;     // of this run: 0, after its first restart 1 ...
};

SecretSource read_secret_source(const Environment& environment);

// Reads the environment with the table in launch.cpp, which has one row per launcher; the innermost launcher wins.
// Throws UsageError, with the variable and its value, if a number is malformed, if RANK >= WORLD_SIZE, and for other
// contradictions. Several ranks without a master address are not an error here: --rendezvous may set the endpoint.
Launch read_launch(const Environment& environment);

// That of this process. Also throws UsageError if there are no launcher's variables although an ancestor of this
// process is a launcher, because something on the way (sudo, env -i) has removed them.
Launch read_launch();

// The launchers of that table, innermost first.
std::vector<std::string_view> launchers();

// The nodes according to the same table, for a program that starts processes (mnrun): in batch jobs, replicas and pods,
// and under a launcher of processes that has started one per node. Throws UsageError, also if it has started several.
Nodes read_nodes(const Environment& environment);

// Without the variables by which read_launch recognizes a process launcher, and related ones: a launcher gives this to
// its children, so that the innermost launcher wins.
Environment without_process_variables(Environment environment);

// The same, for a process that a launcher starts, with what it sets unless the user has: Python's output is not
// buffered, so that lines come when they are printed and the last ones before a crash are not lost; and a process that
// shares the node's cores with others has one thread, because each would start one per core. An OMP_NUM_THREADS that
// OpenMP would not take, such as 0 or "auto", counts as unset.
Environment environment_of_process(Environment environment, bool shares_cores);

// "run id/number of the attempt": the prefix of the run's keys in a store, different after each restart.
std::string attempt_name(const Launch& launch);

}  // namespace multinode
