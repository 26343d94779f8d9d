// cluster: a head and nodes that run the processes of jobs: start, status, submit, logs, stop.
// Exit status: submit and logs have the job's; else 0 done, 1 failed, 2 bad command line or state folder.
#include "commands.hpp"

#include <multinode/check.hpp>

#include <grpc/support/log.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

namespace {

constexpr std::string_view usage =
    "usage: cluster start --head [--host ADDRESS] [--port 6379]   a head, and a node beside it, on this host\n"
    "       cluster start --address HOST:PORT                     a node that joins it\n"
    "       cluster status                                        nodes and jobs\n"
    "       cluster submit [--num-workers N] -- JOB ARGUMENTS     runs a program of the job folder\n"
    "       cluster logs JOB                                      what a job has written, until its end\n"
    "       cluster stop [JOB]                                    ends a job, or the cluster\n"
    "start stays in the foreground: put & behind it, or use ssh, srun or systemd-run. Each has --help.\n";

int run(int argc, const char* const* argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "start") return cluster::start(argc - 1, argv + 1);
  if (command == "status") return cluster::status(argc - 1, argv + 1);
  if (command == "submit") return cluster::submit(argc - 1, argv + 1);
  if (command == "logs") return cluster::logs(argc - 1, argv + 1);
  if (command == "stop") return cluster::stop(argc - 1, argv + 1);
  if (command != "--help" && command != "-h")
    throw multinode::UsageError((argc > 1 ? "no command '" + std::string(command) + "'" : "no command") +
                                ": say start, status, submit, logs or stop; see --help");
  std::cout << usage << std::flush;
  return multinode::exit_right;
}

}  // namespace

int main(int argc, char** argv) {
  gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));  // exceptions say what matters
  setenv("GRPC_DNS_RESOLVER", "native", 0);  // /etc/hosts too, where gRPC's own resolver first waits for a name server
  try {
    return run(argc, argv);
  } catch (const multinode::UsageError& e) {
    std::cerr << std::string("cluster: ") + e.what() + "\n";
    return multinode::exit_usage;
  } catch (const std::exception& e) {
    std::cerr << std::string("cluster: ") + e.what() + "\n";
    return multinode::exit_wrong;
  }
}
