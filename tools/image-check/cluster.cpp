#include "cluster.hpp"

#include "checks.hpp"
#include "node_check/findings.hpp"

#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/host_list.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/process/child_process.hpp>

#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <regex>
#include <set>
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
  std::set<std::string> known;
  if (const auto file = variable("PBS_NODEFILE"); !file.empty())
    for (const auto& host : multinode::hosts_in_file(file))
      if (known.insert(host).second) hosts.push_back(host);
  return hosts;
}

// On the PATH, or at this path.
bool is_installed(const std::string& program) {
  try {
    multinode::find_program(program, variable("PATH"));
    return true;
  } catch (const multinode::StartError&) {
    return false;
  }
}

// The kernel lets a process read another one's memory, as MPI does for large messages (CMA). Some containers forbid it.
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

// What explore says of this machine. This program links no CUDA, so that it starts, and says what is wrong, where CUDA
// is broken.
void explore(Cluster& cluster) {
  const MemoryFile log, lines;
  const auto outcome = Processes({cluster.examples / "01-environment/explore", "--json", lines.path()}, small_machine(),
                                 log.path(), std::chrono::seconds(60))
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

// Variables of libraries and of the loader, which a user or a node's files set, and no launcher for each process.
constexpr const char* of_libraries =
    "(OPAL|UCX|NCCL|FI|PSM2?|HFI|OMP|GOMP|KMP|OPENBLAS|GOTO|MKL|BLIS|MALLOC|GLIBC|GLOO|MPICH|LD)_[A-Za-z0-9_]+";

}  // namespace

double measure_busy(int threads) {
  constexpr long work = 50'000'000;  // ns of a CPU
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::future<double>> times;
  for (int thread = 0; thread < threads; ++thread)
    times.push_back(std::async(std::launch::async, [start] {
      for (timespec used{}; used.tv_nsec < work;) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
      return multinode::seconds_since(start);
    }));
  double busy = 0;
  for (auto& time : times) busy += 1e9 * time.get() / work / threads;
  return busy;
}

Variables small_machine() {
  Variables variables{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                      {"PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe"},
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
    threads->second = std::to_string(multinode::usable_cpus());
  return variables;
}

Cluster find_cluster(const ClusterOptions& options, const std::string& of_site) {
  using multinode::UsageError;
  Cluster cluster;
  cluster.examples = options.examples.empty() ? node_check::folder_of_examples()
                                              : std::filesystem::absolute(options.examples).lexically_normal();
  if (!std::filesystem::is_regular_file(cluster.examples / "01-environment/explore"))
    throw UsageError("--examples: no 01-environment/explore in '" + cluster.examples.string() +
                     "': name the build folder of the examples");

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
    if (!cluster.local)
      throw UsageError("--launcher: mnrun starts programs on one node: take mpirun or srun for several");
  } else if (!is_installed(program)) {
    throw UsageError("--launcher: no " + program + " on the PATH: install it, or take --launcher mnrun");
  }

  explore(cluster);
  cluster.processes_per_node = options.processes_per_node > 0 ? options.processes_per_node
                               : cluster.gpus > 0             ? cluster.gpus
                                                              : std::clamp(multinode::usable_cpus(), 2, 4);
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

Command Cluster::launch(const std::vector<std::string>& on, int per_node, const Command& program,
                        const Variables& variables) const {
  const auto each = std::to_string(per_node),
             processes = std::to_string(on.size() * static_cast<std::size_t>(per_node));
  auto command = launcher_words;
  if (launcher == "srun") {
    if (std::ranges::none_of(command, [](const auto& word) { return word.rfind("--mpi", 0) == 0; }))
      command.push_back("--mpi=pmix");
    command.insert(command.end(),
                   {"--kill-on-bad-exit=1", "--overlap", "--nodes=" + std::to_string(on.size()),
                    "--ntasks=" + processes, "--ntasks-per-node=" + each, "--nodelist=" + multinode::join(on, ",")});
  } else if (launcher == "mpirun") {
    command.insert(command.end(), {"-n", processes});
    if (!local) {
      command.insert(command.end(), {"-H", multinode::join(on, ":" + each + ",") + ":" + each});
      const std::regex ours("^(PATH|" + std::string(of_libraries) + ")=");
      auto all = variables;  // of which mpirun itself passes on OMPI_MCA_ alone
      for (char** entry = environ; *entry; ++entry)
        if (std::regex_search(*entry, ours)) all[std::string(*entry, std::strcspn(*entry, "="))];
      for (const auto& word : launcher_words) all.erase(word.substr(0, word.find('=')));  // -x NAME=VALUE
      for (const auto& [name, value] : all)
        if (name.rfind("OMPI_", 0) != 0) command.insert(command.end(), {"-x", name});
    }
  } else {
    command.front() = examples / "01-environment/mnrun";
    command.insert(command.end(), {"--standalone", "--nproc-per-node", each});
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

namespace {

using nlohmann::json;

// Lines "name = value" of a configuration file.
void settings_of(const std::filesystem::path& path, std::map<std::string, std::string>& settings) {
  std::istringstream file(multinode::read_text(path).value_or(""));
  const std::regex assignment(R"(\s*([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*)");
  std::smatch match;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, match, assignment))
      settings[path.filename().string() + ": " + match[1].str()] = match[2];
}

}  // namespace

std::vector<std::string> environment_differences(const Cluster& cluster, std::chrono::seconds limit) {
  if (cluster.nodes.size() < 2) return {};
  // A line for each node, and no part of another's in it. mpirun with a path adds to LD_LIBRARY_PATH, elsewhere twice.
  const std::string start = "environment of ", libraries = of_libraries;
  const auto script = "printf '" + start + R"sh(%s %.3000s\n' "$(uname -n)" "$(env | grep -E '^()sh" + libraries +
                      R"sh(|OMPI_MCA_(btl|pml|mtl|coll|osc|opal)[a-z0-9_]*)=' | grep -viE 'token|secret|password' | )sh"
                      R"sh(sed -E '/^LD_LIB/{:a;s/([=:])([^:]+)((:[^:]+)*):\2(:|$)/\1\2\3\5/;ta;s/:+$//}' | )sh"
                      R"sh(LC_ALL=C sort | tr '\n' '\t')")sh";
  const MemoryFile log;
  const auto variables = small_machine();
  Processes(cluster.launch(cluster.nodes, 1, {"sh", "-c", script}, variables), variables, log.path(), limit).end();
  std::map<std::string, std::set<std::string>> hosts;  // that have NAME=VALUE
  std::set<std::string> all;
  std::istringstream lines(log.text());
  for (std::string line, host, entry; std::getline(lines, line);) {
    const auto at = line.find(start);
    std::istringstream words(at == line.npos ? "" : line.substr(at + start.size()));
    if (std::getline(words, host, ' ')) all.insert(host);
    while (std::getline(words, entry, '\t') && !words.eof()) hosts[entry].insert(host);  // eof: cut off
  }
  std::vector<std::string> differences;
  for (const auto& [entry, on] : hosts)
    if (on.size() < all.size())
      differences.push_back(multinode::one_line(entry) + " on " + multinode::join(on) +
                            " alone: give all nodes the same, or export it where image-check starts");
  return differences;
}

void describe_machine(Head& head, const Cluster& cluster) {
  if (const json& told = cluster.explored; !told.is_null()) {
    const auto& cpu = told.at("cpu").at("machine");
    head.machine["CPU"] = cpu.at("model");
    head.machine["CPUs"] = cpu.at("cpus").dump();
    head.machine["CPU packages"] = cpu.at("packages").dump();
    head.machine["memory, GiB"] = std::to_string(std::lround(told.at("memory_bytes").get<double>() / (1 << 30)));
    head.machine["GPUs"] = multinode::join(told.at("gpus").at("devices"), ", ",
                                           [](const json& gpu) { return as_text(gpu.value("name", json("GPU"))); });
    head.machine["RDMA devices"] = multinode::join(told.at("rdma"), ", ", [](const json& device) {
      return as_text(device.is_object() ? device.value("name", device) : device);
    });
    for (const auto& [name, version] : told.at("versions").items()) head.versions[name] = as_text(version);
  }
  head.machine["nodes"] = std::to_string(head.nodes.size());
  head.machine["processes per node"] = std::to_string(head.processes_per_node);

  // Debian's and Ubuntu's packages, or Red Hat's.
  const MemoryFile packages;
  Processes({"sh", "-c",
             "dpkg-query -W -f '${db:Status-Abbrev}${binary:Package} ${Version}\\n' | sed -n 's/^ii *//p'; "
             "rpm -qa --queryformat '%{NAME} %{VERSION}-%{RELEASE}\\n'"},
            {}, packages.path(), std::chrono::seconds(20))
      .end();
  std::istringstream list(packages.text());
  for (std::string line, name, version, more; std::getline(list, line);)
    if (std::istringstream words(line); words >> name >> version && !(words >> more))
      head.versions["package " + name] = version;

  const std::regex steering("(OMPI_MCA|PMIX_MCA|PRTE_MCA|HWLOC|CUDA|MV2|I_MPI)_.+|" + std::string(of_libraries));
  const std::regex secret(".*(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL).*", std::regex::icase);
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (std::regex_match(name, steering) && !std::regex_match(name, secret))
      head.settings[name] = text.substr(name.size() + 1);
  }
  const char* home = std::getenv("HOME");
  for (const std::filesystem::path& path :
       {std::filesystem::path("/etc/openmpi/openmpi-mca-params.conf"), std::filesystem::path("/etc/nccl.conf"),
        std::filesystem::path(home ? home : "/") / ".openmpi/mca-params.conf",
        std::filesystem::path(home ? home : "/") / ".nccl.conf", std::filesystem::path("/etc/ucx/ucx.conf")})
    settings_of(path, head.settings);
  for (const char* path :
       {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/devices/system/cpu/smt/control", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/numa_balancing",
        "/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max", "/proc/sys/net/ipv4/tcp_congestion_control",
        "/proc/sys/kernel/yama/ptrace_scope"})
    if (std::string value; std::getline(std::ifstream(path), value) && !value.empty()) head.settings[path] = value;
}

namespace {

// Why 127.0.0.1 cannot be reached; "": it can, also where no program listens.
std::string no_loopback() {
  const multinode::Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(1);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{5, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == ECONNREFUSED)
    return "";
  return "this node cannot connect to 127.0.0.1 (" + std::string(std::strerror(errno)) + "): ip link set lo up";
}

// Why a command fails: the line that names a cause, else its last one. "": it does not, or takes too long to say.
std::string failure_of(const Command& command) {
  const MemoryFile log;
  const auto outcome = Processes(command, small_machine(), log.path(), std::chrono::seconds(20)).end();
  if (outcome.exit_status == 0 || outcome.timed_out) return "";
  std::istringstream lines(log.text());
  std::string telling = "exit status " + std::to_string(outcome.exit_status);
  for (std::string line; std::getline(lines, line);) {
    const bool says_why = line.find("error while loading") != line.npos || line.find("rror:") != line.npos ||
                          line.find("cannot ") != line.npos;
    if (line.find_first_not_of(" -=") != line.npos) telling = line;
    if (says_why) break;
  }
  if (outcome.exit_status > 128) {  // killed, perhaps while it was loaded: the last file that the loader tried
    auto variables = small_machine();
    variables["LD_DEBUG"] = "libs";
    const MemoryFile loading;
    Processes(command, variables, loading.path(), std::chrono::seconds(20)).end();
    const std::string text = loading.text(), trying = "trying file=";
    if (const auto at = text.rfind(trying); at != text.npos)
      telling += ", and the last library it loaded is " +
                 text.substr(at + trying.size(), text.find('\n', at) - at - trying.size());
  }
  return telling.substr(0, 300);
}

}  // namespace

std::string common_cause(const Cluster& cluster) {
  for (const auto& finding : node_check::look_at_limits())
    if (finding.ok != true && !finding.why.empty()) return finding.what + ": " + finding.why;
  if (const auto why = no_loopback(); !why.empty()) return why;
  for (const char* program : {"01-environment/explore", "03-message-passing/message_passing_mpi",
                              "03-message-passing/message_passing_gloo", "03-message-passing/message_passing_nccl"})
    if (const auto path = cluster.path_of(program); std::filesystem::exists(path))
      if (const auto why = failure_of({path, "--version"}); !why.empty())
        return path.filename().string() + " does not start: " + why;
  if (cluster.launcher != "mpirun") return "";
  auto words = cluster.launcher_words;
  words.insert(words.end(), {"-n", "1", "true"});
  const auto why = failure_of(words);
  return why.empty() ? "" : "'" + shell_words({}, words) + "' fails: " + why;
}

}  // namespace image_check
