#include "explore/comparison.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>

namespace explore {

namespace {

using nlohmann::json;

std::string text(const json& value) { return text_or(value, "?"); }

// "; rank from RANK, world_size from WORLD_SIZE": the variables that gave the values.
std::string sources(const json& process) {
  const json& variables = process.at("variables");
  std::string all;
  for (const char* value : {"rank", "world_size", "local_rank", "local_size", "node_rank", "node_count",
                            "master_address", "master_port", "store"})
    if (variables.contains(value))
      all += fmt::format("{}{} from {}", all.empty() ? "; " : ", ", value, text(variables.at(value)));
  return all;
}

void print_processes(const Processes& processes, std::ostream& out) {
  multinode::Table table(
      {"rank", "host", "node", "local rank", "pid", "CPUs", "cores", "NUMA nodes", "OpenMP threads", "GPUs"});
  for (const json& p : processes) {
    const auto cell = [&](const char* pointer) { return text(p.at(json::json_pointer(pointer))); };
    table.add({cell("/rank"), cell("/host"), cell("/node"), cell("/local_rank"), cell("/pid"), cell("/cpu/allowed"),
               cell("/cpu/cores"), cell("/cpu/numa_nodes"),
               cell("/threads/openmp") + " (" + cell("/threads/openmp_from") + ")",
               std::to_string(p.at("gpus").at("devices").size())});
  }
  table.print(out);
}

std::string machine(const json& p) {
  const json& m = p.at("cpu").at("machine");
  const std::string cpus =
      m.is_null()
          ? "unknown: built without hwloc"
          : fmt::format("{}, CPUs {}, cores {}, packages {}, NUMA nodes {}", text_or(m.at("model"), "unknown model"),
                        text(m.at("cpus")), text(m.at("cores")), text(m.at("packages")), text(m.at("numa_nodes")));
  return cpus + ", memory " + bytes_or(p.at("memory_bytes"), "unknown");
}

std::string container(const json& p) {
  const auto shown = [](const json& mark) {
    return fmt::format("{} (found {})", text(mark.at("kind")), text(mark.at("found")));
  };
  return p.at("container").empty() ? "none detected" : multinode::join(p.at("container"), ", ", shown);
}

std::string limits(const json& p) {
  const json &limits = p.at("limits"), &cgroup = p.at("cgroup");
  return fmt::format("locked memory {}, open files {}, /dev/shm {}, cgroup CPUs {}, cgroup memory {}",
                     bytes_or(limits.at("memlock_bytes"), "unlimited"), text_or(limits.at("open_files"), "unlimited"),
                     bytes_or(limits.at("shm_bytes"), "none"), text_or(cgroup.at("cpus"), "unlimited"),
                     bytes_or(cgroup.at("memory_bytes"), "unlimited"));
}

std::string versions(const json& p) {
  return multinode::join(p.at("versions").items(), ", ",
                         [](const auto& version) { return version.key() + " " + text(version.value()); });
}

std::vector<std::string> gpus(const json& p) {
  const json& all = p.at("gpus");
  std::vector<std::string> lines;
  for (const json& gpu : all.at("devices"))
    lines.push_back(fmt::format("{}, {}, PCI {}, {}, driver {}", text(gpu.at("name")),
                                bytes_or(gpu.value("memory_bytes", json()), "? memory"), text(gpu.at("pci")),
                                text(gpu.at("uuid")), text(all.at("driver"))));
  if (lines.empty()) lines.push_back("none: " + all.value("none_because", "unknown"));
  return lines;
}

// One line per element of `array`, or "none".
std::vector<std::string> lines_of(const json& array, std::string (*line)(const json& element)) {
  std::vector<std::string> lines;
  for (const json& element : array) lines.push_back(line(element));
  if (lines.empty()) lines.push_back("none");
  return lines;
}

std::string rdma_port(const json& port) {
  return fmt::format("{} port {}, {}, {}, {}, interface {}, firmware {}", text(port.at("device")),
                     text(port.at("port")), text(port.at("state")), text_or(port.at("rate"), "rate unknown"),
                     text(port.at("link_layer")), text_or(port.at("interface"), "none"),
                     text_or(port.at("firmware"), "unknown"));
}

std::string network_interface(const json& interface) {
  const json& speed = interface.at("speed_mbit");
  std::string line = fmt::format("{}, {}, MTU {}, {}", text(interface.at("name")), text(interface.at("state")),
                                 text(interface.at("mtu")),
                                 speed.is_null() ? "speed unknown" : multinode::json_text(speed) + " Mbit/s");
  for (const json& address : interface.at("addresses")) line += ", " + text(address);
  return line;
}

void print_node(const json& p, std::ostream& out) {
  const std::pair<const char*, std::vector<std::string>> rows[] = {
      {"machine", {machine(p)}},
      {"container", {container(p)}},
      {"limits", {limits(p)}},
      {"versions", {versions(p)}},
      {"GPU", gpus(p)},
      {"RDMA", lines_of(p.at("rdma"), rdma_port)},
      {"network", lines_of(p.at("network"), network_interface)}};
  for (const auto& [name, lines] : rows)
    for (const std::string& line : lines) out << fmt::format("  {:<11}{}\n", name, line);
  for (const json& thing : p.at("required"))
    if (!thing.at("found").is_null())
      out << fmt::format("  found      {} {}\n", text(thing.at("kind")), text(thing.at("found")));
}

}  // namespace

void print(const Processes& processes, std::ostream& out) {
  const std::map<int, std::vector<int>> nodes = ranks_of_nodes(processes);
  const json& first = processes.front();
  out << fmt::format("{} {} on {} {}, launcher: {}{}\n\n", processes.size(),
                     processes.size() == 1 ? "process" : "processes", nodes.size(),
                     nodes.size() == 1 ? "node" : "nodes", text(first.at("launcher")), sources(first));
  print_processes(processes, out);
  for (const auto& [node, ranks] : nodes) {
    out << '\n' << named_ranks(processes, ranks) << '\n';
    print_node(processes[static_cast<std::size_t>(ranks.front())], out);  // which reports for its node
  }
  out << std::flush;
}

}  // namespace explore
