#include "explore/print.hpp"

#include <multinode/report.hpp>
#include <multinode/text.hpp>

#include <nlohmann/json.hpp>

#include <set>
#include <sstream>

namespace explore {

namespace {

using nlohmann::json;

// "rank from RANK, world_size from WORLD_SIZE": the variables that gave the values.
std::string sources(const json& process) {
  std::string all;
  for (const char* value : {"rank", "world_size", "local_rank", "local_size", "node_rank", "node_count",
                            "master_address", "master_port", "store"})
    if (process.at("variables").contains(value))
      all += (all.empty() ? "; " : ", ") + std::string(value) + " from " +
             process.at("variables").at(value).get<std::string>();
  return all;
}

void print_processes(const Processes& processes, std::ostream& out) {
  multinode::Table table({"rank", "host", "node", "local rank", "pid", "CPUs", "cores", "NUMA nodes", "OpenMP threads",
                          "OpenBLAS threads", "GPUs"});
  for (const json& p : processes) {
    const json &cpu = p.at("cpu"), &threads = p.at("threads");
    const auto decided = [&](const char* count, const char* from) {
      return threads.at(count).dump() + " (" + threads.at(from).get<std::string>() + ")";
    };
    table.add({p.at("rank").dump(), p.at("host"), p.at("node").dump(), p.at("local_rank").dump(), p.at("pid").dump(),
               cpu.at("allowed"), text_or(cpu.at("cores"), "?"), text_or(cpu.at("numa_nodes"), "?"),
               decided("openmp", "openmp_from"), decided("openblas", "openblas_from"),
               std::to_string(p.at("gpus").at("devices").size())});
  }
  table.print(out);
}

std::string machine(const json& p) {
  const json& machine = p.at("cpu").at("machine");
  std::string text = "unknown: built without hwloc";
  if (!machine.is_null())
    text = text_or(machine.at("model"), "unknown model") + ", CPUs " + machine.at("cpus").dump() + ", cores " +
           machine.at("cores").dump() + ", packages " + machine.at("packages").dump() + ", NUMA nodes " +
           machine.at("numa_nodes").dump();
  return text + ", memory " + bytes_or(p.at("memory_bytes"), "unknown");
}

std::string container(const json& p) {
  const auto shown = [](const json& mark) {
    return mark.at("kind").get<std::string>() + " (found " + mark.at("found").get<std::string>() + ")";
  };
  return p.at("container").empty() ? "none detected" : multinode::join(p.at("container"), ", ", shown);
}

std::string limits(const json& p) {
  const json &limits = p.at("limits"), &cgroup = p.at("cgroup");
  return "locked memory " + bytes_or(limits.at("memlock_bytes"), "unlimited") + ", open files " +
         text_or(limits.at("open_files"), "unlimited") + ", /dev/shm " + bytes_or(limits.at("shm_bytes"), "none") +
         ", cgroup CPUs " + text_or(cgroup.at("cpus"), "unlimited") + ", cgroup memory " +
         bytes_or(cgroup.at("memory_bytes"), "unlimited");
}

std::string versions(const json& p) {
  return multinode::join(p.at("versions").items(), ", ",
                         [](const auto& version) { return version.key() + " " + std::string(version.value()); });
}

std::vector<std::string> gpus(const json& p) {
  std::vector<std::string> lines;
  for (const json& gpu : p.at("gpus").at("devices"))
    lines.push_back(gpu.at("name").get<std::string>() + ", " + bytes_or(gpu.value("memory_bytes", json()), "? memory") +
                    ", PCI " + gpu.at("pci").get<std::string>() + ", " + gpu.at("uuid").get<std::string>() +
                    ", driver " + p.at("gpus").at("driver").get<std::string>());
  const auto table = [&](const std::string& what, const char* member, const std::string& before) {
    const json rows = p.at("gpus").value(member, json::array());
    for (std::size_t from = 0; from < rows.size(); ++from) {
      std::string line = what + " from " + std::to_string(from) + " to each:";
      for (const json& to : rows[from]) line += to.is_null() ? " -" : to.is_boolean() ? " none" : before + to.dump();
      lines.push_back(line);
    }
  };
  table("direct access", "peers", " rank ");
  table("NVLinks", "nvlinks", " ");
  if (lines.empty()) lines.push_back("none: " + p.at("gpus").value("none_because", "unknown"));
  return lines;
}

std::vector<std::string> rdma(const json& p) {
  std::vector<std::string> lines;
  for (const json& port : p.at("rdma"))
    lines.push_back(port.at("device").get<std::string>() + " port " + port.at("port").get<std::string>() + ", " +
                    text_or(port.at("state"), "?") + ", " + text_or(port.at("rate"), "rate unknown") + ", " +
                    text_or(port.at("link_layer"), "?") + ", interface " + text_or(port.at("interface"), "none") +
                    ", firmware " + text_or(port.at("firmware"), "unknown"));
  if (lines.empty()) lines.push_back("none");
  return lines;
}

std::vector<std::string> network(const json& p) {
  std::vector<std::string> lines;
  for (const json& interface : p.at("network")) {
    const json& speed = interface.at("speed_mbit");
    std::string line = interface.at("name").get<std::string>() + ", " + text_or(interface.at("state"), "?") + ", MTU " +
                       text_or(interface.at("mtu"), "?") + ", " +
                       (speed.is_null() ? "speed unknown" : speed.dump() + " Mbit/s");
    for (const json& address : interface.at("addresses")) line += ", " + address.get<std::string>();
    lines.push_back(line);
  }
  if (lines.empty()) lines.push_back("none");
  return lines;
}

void print_node(const json& p, std::ostream& out) {
  const std::pair<const char*, std::vector<std::string>> rows[] = {
      {"machine", {machine(p)}}, {"container", {container(p)}},
      {"limits", {limits(p)}},   {"versions", {versions(p)}},
      {"GPU", gpus(p)},          {"RDMA", rdma(p)},
      {"network", network(p)}};
  for (const auto& [name, lines] : rows)
    for (const std::string& line : lines)
      out << "  " << name << std::string(11 - std::string(name).size(), ' ') << line << '\n';
  for (const json& thing : p.at("required"))
    if (!thing.at("found").is_null())
      out << "  found      " << thing.at("kind").get<std::string>() << ' ' << thing.at("found").get<std::string>()
          << '\n';
}

}  // namespace

void print(const Processes& processes, std::ostream& out) {
  std::set<int> nodes;
  for (const json& p : processes) nodes.insert(p.at("node").get<int>());
  const json& first = processes.front();
  out << processes.size() << (processes.size() == 1 ? " process" : " processes") << " on " << nodes.size()
      << (nodes.size() == 1 ? " node" : " nodes") << ", launcher: " << first.at("launcher").get<std::string>()
      << sources(first) << "\n\n";
  print_processes(processes, out);
  for (const json& p : processes) {
    if (nodes.erase(p.at("node").get<int>()) == 0) continue;  // the first process of a node reports for it
    std::vector<int> ranks;
    for (const json& other : processes)
      if (other.at("node") == p.at("node")) ranks.push_back(other.at("rank").get<int>());
    out << '\n' << who(processes, ranks) << '\n';
    print_node(p, out);
  }
  out << std::flush;
}

}  // namespace explore
