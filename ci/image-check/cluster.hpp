// cluster.hpp: the nodes that are checked, and how programs are started on them.
#pragma once

#include "process.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace image_check {

struct Cluster {
  std::string launcher;  // mpirun, srun or mnrun
  std::vector<std::string> nodes;
  bool local = true;  // the only node is this machine, and needs no name
  int processes_per_node = 2;
  std::filesystem::path examples;  // with 01-environment, 02-mpi ... in it

  // CHAPTER/PROGRAM in the examples; image-check/PROGRAM beside this program.
  std::filesystem::path path_of(const std::string& program) const;

  // Commands that start `program` on these nodes, all at once; more than one where a node needs a launcher of its own.
  std::vector<Command> launch(const std::vector<std::string>& on, int per_node, const Command& program,
                              const Variables& variables) const;
};

struct ClusterOptions {
  std::string launcher = "auto";
  std::vector<std::string> hosts;  // none: those of the job (Slurm, PBS), or this machine
  int nodes = 0;                   // 0: all of them
  int processes_per_node = 0;      // 0: GPUs, or cores up to 4, at least 2
  std::string examples;            // "": where this program lies
};
// Throws multinode::UsageError, naming what is missing and what to do.
Cluster find_cluster(const ClusterOptions& options);

// On the PATH or a path; "" where it is not.
std::string find_program(const std::string& name);

// What programs need on small machines, in containers and as root; for all that is started.
Variables small_machine();

}  // namespace image_check
