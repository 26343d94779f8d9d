// program.hpp: main() of a program with ranks: reads the launch and the command line, meets the other ranks, and turns
// every ending into one line and one exit status, the same on all of them.
#pragma once

#include <multinode/options.hpp>
#include <multinode/world.hpp>

#include <functional>
#include <memory>
#include <string>

namespace multinode {

// `options` are the program's own, `common` the shared ones, both filled before `body` runs. `validate`, called by
// every rank before the meeting, throws UsageError for what does not fit. Where the launcher reads reports, --json is
// by default what it reads. body returns exit_right or exit_wrong; all ranks end with the worst of them. What body
// throws ends all ranks (UsageError: 2, HardwareAbsent: 77, anything else: 1), and one line on stderr says which rank
// and why.
struct Program {
  Program(
      std::string name, const boost::program_options::options_description& options, CommonOptions& common,
      std::function<void()> validate = [] {});

  std::string name;
  std::shared_ptr<boost::program_options::options_description> options;
  CommonOptions& common;
  std::function<void()> validate;
  bool same_versions = true;  // see World::Options
};
int run(const Program& program, int argc, const char* const* argv, const std::function<int(World&)>& body);

}  // namespace multinode
