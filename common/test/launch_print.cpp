// Prints the result of read_launch in one line.
#include <multinode/launch.hpp>

#include <iostream>

namespace {

std::string show(const std::optional<multinode::Given<int>>& given) {
  return given ? std::to_string(given->value) : "-";
}

}  // namespace

int main() {
  const multinode::Launch l = multinode::read_launch(multinode::current_environment());
  std::cout << l.launcher + ": rank " + std::to_string(l.rank.value) + "/" + std::to_string(l.world_size.value) +
                   " local " + std::to_string(l.local_rank.value) + "/" + show(l.local_size) + " node " +
                   show(l.node_rank) + "/" + show(l.node_count) + (l.under_mpi ? " mpi" : "") +
                   (l.agent_store ? " agent" : "") + "\n";
}
