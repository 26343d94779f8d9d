// program.hpp: main() of a program with ranks: reads the environment and the command line, connects to the other ranks,
// and turns every error into one line and one exit status, the same on all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/world/world.hpp>

#include <functional>
#include <string>

namespace multinode {

// `options` are the program's own, `common` the shared ones; both are parsed before `body` runs. Every rank calls
// `validate` before it connects to the others; it throws UsageError for invalid options. `body` returns exit_right or
// exit_wrong, and run() returns the worst of all ranks; a rank whose output is lost is wrong (flush_output()). An
// exception from `body` ends all ranks (status 2 for UsageError, 77 for HardwareAbsent, else 1), and one line on stderr
// names the rank and the reason. `common` must outlive the Program.
struct Program {
  std::string name;
  boost::program_options::options_description options;
  CommonOptions& common;
  std::function<void()> validate = [] {};
  bool same_versions = true;  // see World::Options
};
int run(const Program& program, int argc, const char* const* argv, const std::function<int(World&)>& body);

}  // namespace multinode
