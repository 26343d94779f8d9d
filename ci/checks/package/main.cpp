// Adds up the numbers of all ranks. Exit status: 0 right, 1 wrong.
#include <multinode/communicator.hpp>
#include <multinode/program.hpp>

#include <boost/program_options.hpp>

#include <cstdint>
#include <iostream>

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  const multinode::Program program{"sum_of_ranks", {}, common};
  return multinode::run(program, argc, argv, [&](multinode::World& world) {
    const auto communicator = multinode::make_communicator(world, multinode::parse_backend(common.backend));
    std::int32_t sum = world.rank() + 1;
    communicator->all_reduce(std::span(&sum, 1));
    if (world.rank() == 0) std::cout << "1 + ... + " << world.size() << " = " << sum << '\n';
    return sum == world.size() * (world.size() + 1) / 2 ? multinode::exit_right : multinode::exit_wrong;
  });
}
