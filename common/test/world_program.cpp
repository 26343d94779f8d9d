// world_program: connects its ranks, runs barriers, and fails as its options say. For world_test.
#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#ifndef WITHOUT_COMMUNICATOR
#include <multinode/communicator/libraries.hpp>
#endif

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <thread>

namespace po = boost::program_options;

int main(int argc, char** argv) {
  int fail = -1, usage = -1, absent = -1, late = -1, other = -1, nap = 0, wrong = -1, leave = -1, steps = 1, bytes = 0;
  std::string until;
#ifdef ANOTHER_BUILD
  po::options_description options("Options of another build");
#else
  po::options_description options("Options");
#endif
  options.add_options()("throw", po::value(&fail))("usage", po::value(&usage))("absent", po::value(&absent))(
      "late", po::value(&late))("nap", po::value(&nap), "milliseconds that the late rank sleeps; 0: forever")(
      "other", po::value(&other), "rank that makes another call")("wrong", po::value(&wrong))(
      "leave", po::value(&leave))("steps", po::value(&steps))(
      "until", po::value(&until), "repeat steps until this file exists")("gather", po::value(&bytes),
                                                                         "gather this many bytes of each rank");
  multinode::CommonOptions common;
  const multinode::Program program{"world_program", options, common, [] {}};
  const int status = multinode::run(program, argc, argv, [&](multinode::World& world) {
    const int rank = world.rank();
    if (bytes > 0) {
      const auto text = [&](int of) { return std::string(static_cast<std::size_t>(bytes + of), char('a' + of)); };
      const auto all = world.gather("texts", text(rank)), of_all = world.gather_on_rank_0("texts", text(rank));
      if (of_all != (rank == 0 ? all : std::vector<std::string>())) throw std::runtime_error("a wrong text");
      for (int r = 0; r < world.size(); ++r)
        if (all.at(static_cast<std::size_t>(r)) != text(r)) throw std::runtime_error("a wrong text");
    }
    const auto more = [&] {
      return !until.empty() && world.combine_on_rank_0("until", "", [&](auto) {
        return std::filesystem::exists(until) ? "" : "more";
      }) == "more";
    };
    for (int step = 1; step <= steps || more(); ++step) {
      if (rank == fail) throw std::runtime_error("thrown on purpose");
      if (rank == usage) throw multinode::UsageError("an option is wrong on purpose");
      if (rank == absent) throw multinode::HardwareAbsent("a device is absent on purpose");
      if (rank == leave) _exit(0);
      if (rank == late) std::this_thread::sleep_for(nap ? std::chrono::milliseconds(nap) : std::chrono::hours(1));
      world.barrier(rank == other ? "another step" : "step");
      if (rank == 0) std::cout << "step " << step << std::endl;
    }
    std::string line = "rank " + std::to_string(rank) + " of " + std::to_string(world.size()) + ", node " +
                       std::to_string(world.node_rank()) + " of " + std::to_string(world.node_count()) +
                       ", local size " + std::to_string(world.local_size()) + "\n";
    std::cout << line;
    return rank == wrong ? 1 : 0;
  });
  _exit(status);  // writes nothing more, like a rank that its launcher kills here: run() has written all
}
