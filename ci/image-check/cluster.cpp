#include "cluster.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/host_list.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/process/child_process.hpp>

#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <random>
#include <sstream>

namespace image_check {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> hosts_of_the_job() {
  if (const auto list = variable("SLURM_JOB_NODELIST"); !list.empty()) return multinode::expand_host_list(list);
  std::vector<std::string> hosts;
  const auto path = variable("PBS_NODEFILE");
  std::ifstream file(path);
  for (std::string host; file >> host;) {
    if (!multinode::is_host_name(host))
      throw multinode::UsageError("PBS_NODEFILE: " + path + " has '" + multinode::printable(host) +
                                  "', which is no host name");
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

int cores() { return multinode::usable_cpus(); }

Command joined(Command first, const Command& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string a_port() {  // below those that the kernel gives to clients
  std::random_device random;
  return std::to_string(std::uniform_int_distribution(20000, 32000)(random));
}

// What explore says of this machine. This program links no CUDA, so that it starts, and says what is wrong, where CUDA
// is broken.
void explore(Cluster& cluster) {
  const MemoryFile log, lines;
  const auto outcome = Processes({{cluster.examples / "01-environment/explore", "--json", lines.path()}},
                                 small_machine(), log.path(), std::chrono::seconds(60))
                           .end();
  std::istringstream text(lines.text());
  for (std::string line; std::getline(text, line);) {
    auto told = nlohmann::json::parse(line, nullptr, false);
    if (!told.is_object() || !told.contains("gpus")) continue;
    cluster.gpus = static_cast<int>(told.at("gpus").at("devices").size());
    cluster.no_gpu += ": " + told.at("gpus").value("none_because", "");
    cluster.explored = std::move(told);
    return;
  }
  cluster.no_gpu += " known: 01-environment/explore ended with status " + std::to_string(outcome.exit_status) + ": " +
                    log.text().substr(0, 200);
}

}  // namespace

bool is_installed(const std::string& program) {
  try {
    multinode::find_program(program, variable("PATH"));
    return true;
  } catch (const multinode::StartError&) {
    return false;
  }
}

Variables small_machine() {
  Variables variables{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                      {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                      {"OMP_NUM_THREADS", "1"}};
  static const bool single_copy = can_read_other_processes();
  if (!single_copy) variables["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none";
  for (auto entry = variables.begin(); entry != variables.end();)
    entry = std::getenv(entry->first.c_str()) ? variables.erase(entry) : std::next(entry);
  return variables;
}

Variables whole_node() {
  auto variables = small_machine();
  if (const auto threads = variables.find("OMP_NUM_THREADS"); threads != variables.end())
    threads->second = std::to_string(cores());
  return variables;
}

bool can_read_other_processes() {
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  if (child < 0) return false;
  char here = 0, there = 1;
  const iovec to{&here, 1}, from{&there, 1};
  const bool read = process_vm_readv(child, &to, 1, &from, 1, 0) == 1;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return read;
}

Cluster find_cluster(const ClusterOptions& options, const std::string& of_site) {
  using multinode::UsageError;
  Cluster cluster;
  if (!options.examples.empty()) {
    cluster.examples = std::filesystem::absolute(options.examples).lexically_normal();
    if (!std::filesystem::exists(cluster.examples / "01-environment/explore"))
      throw UsageError("--examples: no 01-environment/explore in " + cluster.examples.string());
  } else {
    cluster.examples = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    while (!std::filesystem::exists(cluster.examples / "01-environment/explore")) {
      if (cluster.examples == cluster.examples.parent_path())
        throw UsageError("the examples are not around this program: name their build folder with --examples");
      cluster.examples = cluster.examples.parent_path();
    }
  }

  cluster.nodes = options.hosts.empty() ? hosts_of_the_job() : options.hosts;
  for (const auto& node : cluster.nodes)
    if (!multinode::is_host_name(node))
      throw UsageError("--hosts: '" + multinode::printable(node) + "' is no host name");
  if (cluster.nodes.empty()) cluster.nodes = {multinode::host_name()};
  cluster.local = cluster.nodes.size() == 1 && options.hosts.empty();

  cluster.launcher_words = read_launcher(options.launcher == "auto" && !of_site.empty() ? of_site : options.launcher);
  auto& program = cluster.launcher_words.front();
  if (program == "auto") {
    const bool mpi = std::filesystem::exists(cluster.examples / "03-message-passing/message_passing_mpi");
    if (!variable("SLURM_JOB_ID").empty() && is_installed("srun"))
      program = "srun";
    else if (mpi && !is_installed("mpirun"))
      throw std::runtime_error(
          "--launcher: the examples are built with MPI, and no mpirun is on the PATH: install it, or "
          "take --launcher mnrun, which skips all checks of MPI");
    else
      program = mpi ? "mpirun" : "mnrun";
  }
  cluster.launcher = kind_of_launcher(program);
  if (cluster.launcher == "mnrun") {
    if (!std::filesystem::exists(cluster.examples / "01-environment/mnrun"))
      throw UsageError("--launcher: no 01-environment/mnrun in " + cluster.examples.string());
  } else if (!is_installed(program)) {
    throw UsageError("--launcher: no " + program + " on the PATH: install it, or take --launcher mnrun");
  }
  if (cluster.launcher == "mpirun" && !cluster.local) {
    const MemoryFile output;
    Processes({{program, "--version"}}, {}, output.path(), std::chrono::seconds(20)).end();
    const std::string version = output.text();
    cluster.hydra = version.find("HYDRA") != version.npos || version.find("Intel(R) MPI") != version.npos;
  }

  explore(cluster);
  cluster.processes_per_node = options.processes_per_node > 0 ? options.processes_per_node
                               : cluster.gpus > 0             ? cluster.gpus
                                                              : std::clamp(cores(), 2, 4);
  return cluster;
}

std::string kind_of_launcher(const std::string& program) {
  const auto file = std::filesystem::path(program).filename().string(), name = file.substr(0, file.find('.'));
  if (name == "mpirun" || name == "mpiexec") return "mpirun";
  return name == "srun" || program == "mnrun" || program == "auto" ? name : "";
}

Command read_launcher(const std::string& text) {
  const auto words = boost::program_options::split_unix(text);
  const std::string name = words.empty() ? "" : words.front();
  if (kind_of_launcher(name).empty())
    throw multinode::UsageError("--launcher: '" + name + "' is none of mpirun, mpiexec, srun, mnrun, auto");
  return words;
}

std::string Cluster::launcher_command() const { return shell_words({}, launcher_words); }

std::filesystem::path Cluster::path_of(const std::string& program) const {
  const std::string own = "image-check/";
  if (program.rfind(own, 0) != 0) return examples / program;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / program.substr(own.size());
}

std::vector<Command> Cluster::launch(const std::vector<std::string>& on, int per_node, const Command& program,
                                     const Variables& variables) const {
  const auto node_count = on.size();
  const auto processes = std::to_string(node_count * static_cast<std::size_t>(per_node));
  auto command = launcher_words;
  if (launcher == "srun") {
    if (std::ranges::none_of(command, [](const auto& word) { return word.rfind("--mpi", 0) == 0; }))
      command.push_back("--mpi=pmix");
    command.insert(command.end(), {"--kill-on-bad-exit=1", "--overlap", "--nodes=" + std::to_string(node_count),
                                   "--ntasks=" + processes, "--ntasks-per-node=" + std::to_string(per_node),
                                   "--nodelist=" + multinode::join(on, ",")});
    return {joined(command, program)};
  }
  if (launcher == "mpirun") {
    command.insert(command.end(), {"-n", processes});
    if (!local)
      command.insert(command.end(),
                     {hydra ? "-hosts" : "-H",
                      multinode::join(on, ":" + std::to_string(per_node) + ",") + ":" + std::to_string(per_node)});
    if (!local && !hydra) {  // Hydra gives all variables to all processes
      for (const char* name : {"PATH", "LD_LIBRARY_PATH"})
        if (std::getenv(name)) command.insert(command.end(), {"-x", name});
      for (const auto& [name, value] : variables)
        if (name.rfind("OMPI_", 0) != 0) command.insert(command.end(), {"-x", name});
    }
    return {joined(command, program)};
  }
  command.front() = examples / "01-environment/mnrun";
  const auto with = [&](const Command& options) { return joined(joined(command, options), program); };
  if (local) return {with({"--standalone", "--nproc-per-node", std::to_string(per_node)})};
  std::vector<Command> commands;
  const auto port = a_port();
  for (std::size_t rank = 0; rank < node_count; ++rank) {
    const auto agent =
        with({"--nnodes", std::to_string(node_count), "--node-rank", std::to_string(rank), "--nproc-per-node",
              std::to_string(per_node), "--master-addr", on[0], "--master-port", port});
    auto forwarded = variables;
    for (const char* name : {"PATH", "LD_LIBRARY_PATH"})
      if (const char* value = std::getenv(name)) forwarded.emplace(name, value);
    // The wish to have no secret is none itself. A real one goes into no command line: each node has its file.
    if (const char* secret = std::getenv("MULTINODE_SECRET"); secret && std::string_view(secret) == "none")
      forwarded.emplace("MULTINODE_SECRET", "none");
    // With a terminal there, the agent ends with its connection.
    commands.push_back({"ssh", "-tt", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "--", on[rank],
                        "exec env " + shell_words(forwarded, agent)});
  }
  return commands;
}

}  // namespace image_check
