// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/output.hpp>
#include <multinode/world/libraries.hpp>
#include <multinode/world/program.hpp>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <thread>

namespace multinode {

namespace {

int status_of(const std::exception& e) {
  if (dynamic_cast<const UsageError*>(&e)) return exit_usage;
  if (dynamic_cast<const HardwareAbsent*>(&e)) return exit_hardware_absent;
  return exit_wrong;
}

// Gloo and files do not say which limit it is.
std::string text_of(const std::exception& e) {
  const std::string text = e.what();
  return text + (text.find("Too many open files") != text.npos && text.find("ulimit") == text.npos
                     ? limit_of_files(EMFILE)
                     : "");
}

int agreed(World& world, int status) {
  return std::stoi(
      world.combine_on_rank_0("exit status", std::to_string(status), [](const std::vector<std::string>& all) {
        return *std::ranges::max_element(all, {}, [](const std::string& one) { return std::stoi(one); });
      }));
}

}  // namespace

int run(const Program& program, int argc, const char* const* argv, const std::function<int(World&)>& body) {
  const CleanOutput output(std::cout), errors(std::cerr);
  bool prints = true;  // until the rank is known: rather print twice than never
  try {
    const Launch launch = read_launch();
    prints = launch.rank.value == 0;
    boost::program_options::options_description known = program.options;
    known.add(program.common.description());
    if (!parse_command_line(argc, argv, known, prints)) return flush_output(program.name, exit_right);
    program.validate();

    prints = true;
    int status = exit_wrong;
    {
      World world(program.name, launch, {program.common.timeout, program.common.rendezvous, program.same_versions});
      if (const char* text = libraries().emulated_gpus(); text && world.rank() == 0)
        std::cout << "# " << text << '\n' << std::flush;
      try {
        // Flushed here: as soon as another rank exits with an error, a launcher may kill this one.
        const int own_status = flush_output(program.name, body(world));
        status = agreed(world, own_status);
        if (libraries().must_finalize_mpi()) {
          const auto inside = world.watchdog().enter("MPI_Finalize");  // waits for ranks that may have died
          libraries().finalize_mpi();
        }
      } catch (const std::exception& e) {
        world.watchdog().fail(text_of(e), status_of(e));
      }
    }
    // When a rank exits with an error, the launcher kills the others. If one of them were still connected, another
    // would report it as gone. Open MPI 5's launcher also loses what the ranks printed just before.
    if (status != exit_right) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return status;
  } catch (const std::exception& e) {
    if (prints)
      say(program.name, text_of(e));
    else  // rank 0 prints this. A launcher may kill it as soon as this rank fails, so let the launcher kill this one
      std::this_thread::sleep_for(std::chrono::seconds(1));
    libraries().abort_mpi(status_of(e));
    return status_of(e);
  }
}

}  // namespace multinode
