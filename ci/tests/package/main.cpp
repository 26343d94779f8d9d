// sum: adds up the numbers of all ranks. Exit status: 0 right, 1 wrong.
#include <multinode/communicator.hpp>

#include <iostream>

int main() {
  multinode::World world("sum");
  const auto communicator = multinode::make_cpu_communicator(world);  // for arrays in host memory: MPI or Gloo
  int sum[] = {world.rank() + 1};
  communicator->all_reduce(std::span(sum));
  if (world.rank() == 0) std::cout << "1 + ... + " << world.size() << " = " << sum[0] << '\n';
  return sum[0] == world.size() * (world.size() + 1) / 2 ? 0 : 1;
}
