#include "cluster.hpp"
#include "results.hpp"

#include <multinode/base/text.hpp>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <regex>

namespace image_check {
namespace {

using nlohmann::json;

// Lines "name = value" of a configuration file.
void settings_of(const std::filesystem::path& path, std::map<std::string, std::string>& settings) {
  std::ifstream file(path);
  const std::regex assignment(R"(\s*([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*)");
  std::smatch match;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, match, assignment))
      settings[path.filename().string() + ": " + match[1].str()] = match[2];
}

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

void describe_machine(Head& head, const Cluster& cluster, const std::filesystem::path& folder) {
  if (const json& told = cluster.explored; !told.is_null()) {
    const auto& cpu = told.at("cpu").at("machine");
    head.machine["CPU"] = cpu.at("model");
    head.machine["CPUs"] = cpu.at("cpus").dump();
    head.machine["CPU packages"] = cpu.at("packages").dump();
    head.machine["memory, GiB"] = std::to_string(std::lround(told.at("memory_bytes").get<double>() / (1 << 30)));
    head.machine["GPUs"] = multinode::join(told.at("gpus").at("devices"), ", ",
                                           [](const json& gpu) { return text_of(gpu.value("name", json("GPU"))); });
    head.machine["RDMA devices"] = multinode::join(told.at("rdma"), ", ", [](const json& device) {
      return text_of(device.is_object() ? device.value("name", device) : device);
    });
    for (const auto& [name, version] : told.at("versions").items()) head.versions[name] = text_of(version);
  }
  head.machine["nodes"] = std::to_string(head.nodes.size());
  head.machine["processes per node"] = std::to_string(head.processes_per_node);

  // Debian's and Ubuntu's packages, or Red Hat's.
  const auto packages = folder / "packages.txt";
  std::filesystem::remove(packages);
  const Command ask = !is_installed("dpkg-query")
                          ? Command{"rpm", "-qa", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n"}
                          : Command{"dpkg-query", "-W", "-f", "${db:Status-Abbrev}${binary:Package} ${Version}\n"};
  Processes(std::vector<Command>{ask}, {}, packages, std::chrono::seconds(20)).end();
  std::ifstream list(packages);
  for (std::string line; std::getline(list, line);) {
    if (ask[0] == "dpkg-query") line = line.rfind("ii ", 0) == 0 ? line.substr(3) : "";
    if (const auto space = line.find(' '); space != std::string::npos && line.find(':') != 0)
      head.versions["package " + line.substr(0, space)] = line.substr(space + 1);
  }

  const std::regex steering(
      "(OMPI_MCA|PMIX_MCA|PRTE_MCA|OPAL_|UCX|NCCL|FI|PSM2?|HFI|HWLOC|OMP|GOMP|KMP|OPENBLAS|MKL|BLIS|MALLOC|GLOO|CUDA|"
      "MPICH|MV2|I_MPI)_.+|LD_PRELOAD|LD_LIBRARY_PATH");
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

}  // namespace image_check
