#include "cluster/status.hpp"

#include "cluster/access.hpp"
#include "cluster/client.hpp"
#include "cluster/placement.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>
#include <multinode/socket.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

namespace cluster {

namespace {

namespace po = boost::program_options;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void print(const Status& status) {
  const auto of = [](int used, int all) { return std::to_string(used) + "/" + std::to_string(all); };
  multinode::Table nodes({"node", "host", "pid", "CPUs used", "GPUs used"});
  for (const NodeStatus& node : status.nodes())
    nodes.add({std::to_string(node.node()), node.host(), std::to_string(node.pid()), of(node.cpus_used(), node.cpus()),
               of(node.gpus_used(), node.gpus())});
  nodes.print(std::cout);
  if (status.jobs().empty()) {
    std::cout << "no jobs\n";
    return;
  }
  multinode::Table jobs({"job", "program", "workers", "failures", "state"});
  for (const JobStatus& job : status.jobs())
    jobs.add({std::to_string(job.job()), job.program(), std::to_string(job.num_workers()),
              std::to_string(job.failures()), job.waiting().empty() ? "running" : "waits: " + job.waiting()});
  std::cout << "\n";
  jobs.print(std::cout);
}

}  // namespace

int status(int argc, const char* const* argv) {
  int wanted = 0;
  double timeout = 60;
  AccessOptions access;
  po::options_description known("cluster status [OPTIONS]\nPrints the nodes and the jobs of a cluster.\nOptions");
  known.add_options()("wait-for-nodes", po::value(&wanted)->default_value(wanted),
                      "wait until this many nodes have joined")(
      "timeout", po::value(&timeout)->default_value(timeout, "60"), "seconds to wait for them, or for an answer");
  known.add(access.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  multinode::require_range("--wait-for-nodes", wanted, 0, 1000);
  multinode::require_range("--timeout", timeout, 0.001, 31'536'000.0);
  const auto [head, token] = access.read();

  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(timeout));
  const auto end = Clock::now() + limit;
  for (int here = -1;;) {  // -1: no answer yet
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    try {
      const Status status = Client(head, token, std::max(left, 1ms)).status();
      here = status.nodes_size();
      if (here >= wanted) {
        print(status);
        return multinode::exit_right;
      }
    } catch (const NoHead&) {
      if (wanted == 0 || (here < 0 && Clock::now() >= end)) throw;
    }
    if (Clock::now() >= end) {
      std::cerr << "cluster: " << here << " of " << counted(wanted, "node") << " came within "
                << multinode::detail::to_text(limit) << "\n";
      return multinode::exit_wrong;
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(100ms, end - Clock::now()));
  }
}

}  // namespace cluster
