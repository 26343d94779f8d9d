// Prints the result of read_launch in one line. Exit status: 0; 2 if it throws UsageError.
#include <multinode/check.hpp>
#include <multinode/launch.hpp>

#include <iostream>

namespace {

std::string show(const std::optional<multinode::Given<int>>& given) {
  return given ? std::to_string(given->value) : "-";
}

}  // namespace

int main() {
  try {
    const multinode::Launch l = multinode::read_launch(multinode::current_environment());
    std::cout << l.launcher + ": rank " + std::to_string(l.rank.value) + "/" + std::to_string(l.world_size.value) +
                     " local " + std::to_string(l.local_rank.value) + "/" + show(l.local_size) + " node " +
                     show(l.node_rank) + "/" + show(l.node_count) + (l.under_mpi ? " mpi" : "") +
                     (l.agent_store ? " agent" : "") + "\n";
    return multinode::exit_right;
  } catch (const multinode::UsageError& error) {
    std::cerr << std::string("launch_print: ") + error.what() + "\n";
    return multinode::exit_usage;
  }
}
