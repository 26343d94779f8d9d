// attach.hpp: --attach: explains a job that hangs already and was started without who_waits.
#pragma once

#include <multinode/world/world.hpp>

#include <string>
#include <vector>

namespace who_waits {

struct RankProcess {
  int rank = 0, pid = 0, world_size = 0, local_size = 0;  // local_size: 0 if not known
  bool works = false;                                     // it has loaded a library of communication
  std::string run{};                                      // tells runs apart
};
// The processes of this node that are ranks, by their environment: those of a program's name or path, of a process (a
// launcher) and its descendants, or of "job:ID", a job of Slurm or PBS. Of several processes of a rank, the one that
// does its work, and not those that it has forked. Throws UsageError if they are of several runs.
std::vector<RankProcess> ranks_of(const std::string& what);

// Collective, by one process of each node: prints on rank 0 what all ranks of all nodes do. Returns the exit status: 1
// if there is no such process, or no stack could be read.
int attach(multinode::World& world, const std::string& what, const std::string& json);

}  // namespace who_waits
