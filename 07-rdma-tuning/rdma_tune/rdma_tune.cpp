// rdma_tune: which RDMA devices, ports and GIDs are here, which are right for NCCL, UCX and perftest, and what to
// export for them. Exit status: 0 right, 1 wrong or failed, 2 bad command line or environment.
#include "commands.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/text.hpp>

#include <iostream>
#include <string>
#include <string_view>

namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, const char* const* argv);
};
constexpr Command commands[] = {{"table", rdma::run_table},
                                {"exec", rdma::run_exec},
                                {"verify", rdma::run_verify},
                                {"check", rdma::run_check},
                                {"compare", rdma::run_compare}};

int run(int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-' || argv[1][0] == '\0') return rdma::run_table(argc, argv);
  for (const Command& command : commands)
    if (command.name == argv[1]) return command.run(argc - 1, argv + 1);
  throw multinode::UsageError("no command '" + std::string(argv[1]) + "': there are " +
                              multinode::join(commands, ", ", &Command::name) + "; see --help");
}

}  // namespace

int main(int argc, char** argv) {
  const multinode::CleanOutput output(std::cout), errors(std::cerr);
  try {
    return multinode::flush_output("rdma_tune", run(argc, argv));
  } catch (const std::exception& e) {
    multinode::say("rdma_tune", e.what());
    return dynamic_cast<const multinode::UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
  }
}
