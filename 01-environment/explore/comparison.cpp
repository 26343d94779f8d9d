#include "explore/comparison.hpp"

#include "explore/probes.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

namespace explore {

namespace {

using nlohmann::json;

// The member at a JSON pointer; null if there is none.
json at(const json& process, const char* pointer) {
  const json::json_pointer path(pointer);
  return process.contains(path) ? process.at(path) : json();
}

// Members of the objects of an array, joined: "eth0 1400, eth1 9000". With `keep`, only objects for which it is true.
std::string joined(
    const json& array, std::initializer_list<const char*> members,
    bool (*keep)(const json&) = [](const json&) { return true; }) {
  std::string all;
  for (const json& object : array) {
    if (!keep(object)) continue;
    std::string one;
    for (const char* member : members) one += (one.empty() ? "" : " ") + text_or(object.value(member, json()), "?");
    all += (all.empty() ? "" : ", ") + one;
  }
  return all.empty() ? "none" : all;
}

std::string gpu_models(const json& gpus, const char* if_null) {
  std::map<std::string, int> models;  // how many of each
  for (const json& gpu : gpus) ++models[text_or(gpu.value("name", json()), "none")];
  const auto counted = [](const auto& model) { return std::to_string(model.second) + " x " + model.first; };
  return models.empty() ? if_null : multinode::join(models, ", ", counted);
}

std::string containers(const json& marks, const char* if_null) {
  std::set<std::string> kinds;
  for (const json& mark : marks) kinds.insert(text_or(mark.value("kind", json()), "none"));
  return kinds.empty() ? if_null : multinode::join(kinds);
}

std::string rdma_ports(const json& ports, const char*) { return joined(ports, {"device", "state", "rate"}); }

// Interfaces that carry traffic: up, with an address, and not loopback.
std::string interfaces_in_use(const json& interfaces, const char*) {
  return joined(interfaces, {"name", "mtu", "speed_mbit"}, [](const json& interface) {
    return interface.value("name", "") != "lo" && interface.value("state", json()) == "up" &&
           !interface.value("addresses", json::array()).empty();
  });
}

constexpr Item table[] = {
    {"launcher", "/launcher"},
    {"program", "/versions/program"},
    {"mpi", "/versions/MPI"},
    {"gloo", "/versions/Gloo"},
    {"nccl", "/versions/NCCL"},
    {"cuda", "/versions/CUDA"},
    {"driver", "/gpus/driver"},
    {"libc", "/versions/libc"},
    {"kernel", "/versions/kernel"},
    {"system", "/versions/system"},
    {"container", "/container", containers},
    {"cpu-model", "/cpu/machine/model", text_or, "unknown"},
    {"cpus", "/cpu/count"},
    {"openmp", "/threads/openmp"},
    {"memory", "/memory_bytes", bytes_or, "unknown"},
    {"gpus", "/gpus/devices", gpu_models},
    {"rdma", "/rdma", rdma_ports},
    {"network", "/network", interfaces_in_use},
    {"memlock", "/limits/memlock_bytes", bytes_or, "unlimited"},
    {"open-files", "/limits/open_files", text_or, "unlimited"},
    {"shm", "/limits/shm_bytes", bytes_or},
    {"cgroup-cpus", "/cgroup/cpus", text_or, "unlimited"},
    {"cgroup-memory", "/cgroup/memory_bytes", bytes_or, "unlimited"},
    {"folder", "/folder"},
    {"priority", "/priority"},
};

constexpr std::size_t named = 4;  // the most hosts or values that a line names

template <class T>
std::span<T> first_of(std::span<T> items) {
  return items.first(std::min(items.size(), named));
}

std::string plural(const char* word, std::size_t count) { return word + std::string(count == 1 ? "" : "s"); }

const json& of_rank(const Processes& processes, int rank) { return processes.at(static_cast<std::size_t>(rank)); }

std::vector<std::string> hosts_of(const Processes& processes, const std::vector<int>& ranks) {
  std::vector<std::string> hosts;
  for (const int rank : ranks) {
    const std::string host = text_or(at(of_rank(processes, rank), "/host"), "?");
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

// The CPUs that the processes of a node may use together.
double cpus_of(const Processes& processes, const std::vector<int>& ranks) {
  std::set<int> allowed;
  for (const int rank : ranks)
    for (const int cpu : multinode::cpus_in(at(of_rank(processes, rank), "/cpu/allowed").get<std::string>()))
      allowed.insert(cpu);
  const json quota = at(of_rank(processes, ranks.back()), "/cgroup/cpus");
  return std::min(double(allowed.size()), quota.is_number() ? quota.get<double>() : double(allowed.size()));
}

}  // namespace

std::map<int, std::vector<int>> ranks_of_nodes(const Processes& processes) {
  std::map<int, std::vector<int>> nodes;
  for (std::size_t rank = 0; rank < processes.size(); ++rank)
    nodes[processes[rank].value("node", 0)].push_back(static_cast<int>(rank));
  return nodes;
}

std::span<const Item> items() { return table; }

std::vector<Item> parse_items(std::string_view list) {
  std::vector<Item> found;
  std::istringstream names{std::string(list)};
  for (std::string name; std::getline(names, name, ',');) {
    const auto item = std::find_if(std::begin(table), std::end(table), [&](const Item& i) { return i.name == name; });
    if (item == std::end(table))
      throw multinode::UsageError("--require-equal: unknown item '" + name + "'; the items are " +
                                  multinode::join(table, ", ", &Item::name));
    found.push_back(*item);
  }
  if (found.empty())
    throw multinode::UsageError("--require-equal needs items, such as kernel,driver, not '" + std::string(list) + "'");
  return found;
}

std::vector<Group> groups(const Processes& processes, const Item& item) {
  std::vector<std::optional<std::string>> values;
  for (const json& process : processes) values.push_back(item.text(at(process, item.member), item.if_null));
  return multinode::groups_of(values);
}

json differences(const Processes& processes) {
  json all = json::array();
  for (const Item& item : items()) {
    json list = json::array();
    for (const Group& group : groups(processes, item))
      list.push_back({{"value", group.value}, {"ranks", group.members}, {"hosts", hosts_of(processes, group.members)}});
    if (list.size() > 1) all.push_back({{"item", item.name}, {"groups", list}});
  }
  return all;
}

std::string named_ranks(const Processes& processes, const std::vector<int>& ranks) {
  std::vector<int> nodes;
  std::size_t covered = 0;
  for (const auto& [node, its_ranks] : ranks_of_nodes(processes))
    if (std::includes(ranks.begin(), ranks.end(), its_ranks.begin(), its_ranks.end())) {
      nodes.push_back(node);
      covered += its_ranks.size();
    }
  const bool whole_nodes = covered == ranks.size();
  const std::vector<int>& some = whole_nodes ? nodes : ranks;
  const std::vector<std::string> hosts = hosts_of(processes, ranks);
  return fmt::format("{} {} ({} {}{})", plural(whole_nodes ? "node" : "rank", some.size()), multinode::ranges(some),
                     plural("host", hosts.size()), multinode::join(first_of(std::span(hosts))),
                     hosts.size() > named ? fmt::format(" and {} more", hosts.size() - named) : "");
}

std::string describe(const Processes& processes, const Item& item) {
  const std::vector<Group> all = groups(processes, item);
  if (all.size() == 1) return fmt::format("{}: all have {}", item.name, all[0].value);

  const bool majority = all[0].members.size() > all[1].members.size();
  const auto odd = std::span(all).subspan(majority ? 1 : 0);
  const auto shown = [&](const Group& group) {
    const std::string some = named_ranks(processes, group.members);
    return some + (some.starts_with("node ") || some.starts_with("rank ") ? " has " : " have ") + group.value;
  };
  std::string text = fmt::format("{}: {}", item.name, multinode::join(first_of(odd), ", ", shown));
  if (odd.size() > named) text += fmt::format(", and there are {} other values", odd.size() - named);
  if (majority) text += (odd.size() > named ? "; most have " : ", the others ") + all[0].value;
  return text;
}

std::vector<std::string> missing(const Processes& processes) {
  std::vector<std::string> lines;
  const std::size_t count = at(processes.front(), "/required").size();  // all have the same command line
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<int> lacking;
    for (std::size_t rank = 0; rank < processes.size(); ++rank)
      if (processes[rank]["required"][i]["found"].is_null()) lacking.push_back(static_cast<int>(rank));
    if (lacking.empty()) continue;
    const json& thing = of_rank(processes, lacking.front())["required"][i];
    lines.push_back(
        thing["kind"].get<std::string>() + " " + thing["name"].get<std::string>() + " is missing " +
        (lacking.size() == processes.size() ? "everywhere" : "on " + named_ranks(processes, lacking) + " only") + ": " +
        thing["problem"].get<std::string>());
  }
  return lines;
}

std::vector<std::string> oversubscribed(const Processes& processes) {
  std::vector<std::string> lines;
  for (const auto& [node, ranks] : ranks_of_nodes(processes)) {
    std::size_t threads = 0;
    for (const int rank : ranks) threads += at(of_rank(processes, rank), "/threads/openmp").get<std::size_t>();
    const double cpus = cpus_of(processes, ranks);
    if (double(threads) <= cpus) continue;
    const double each = std::max(1.0, std::floor(cpus / double(ranks.size())));
    lines.push_back(
        fmt::format("{}: {} {} would start {} OpenMP threads on {:g} CPUs: {}", named_ranks(processes, ranks),
                    ranks.size(), ranks.size() == 1 ? "process" : "processes", threads, cpus,
                    threads > ranks.size() ? fmt::format("set OMP_NUM_THREADS={:g}", each) : "start fewer processes"));
  }
  return lines;
}

std::vector<std::string> crowded(const Processes& processes) {
  std::vector<std::string> lines;
  for (const auto& [node, ranks] : ranks_of_nodes(processes)) {
    const double cpus = cpus_of(processes, ranks);
    const json machine = at(of_rank(processes, ranks.front()), "/cpu/machine/cpus");
    if (machine.is_number() && cpus < std::min(double(ranks.size()), machine.get<double>()))
      lines.push_back(
          fmt::format("{}: {} processes share {:g} of its {} CPUs: look at taskset, at the CPUs that the job or "
                      "container was given, and at how the launcher binds",
                      named_ranks(processes, ranks), ranks.size(), cpus, multinode::json_text(machine)));
  }
  return lines;
}

std::vector<std::string> late(const Processes& processes, double seconds) {
  const auto waited = [](const json& process) { return process.value("waited_seconds", 0.0); };  // for the last one
  const double longest = waited(std::ranges::max(processes, {}, waited));
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < processes.size(); ++rank)
    if (const double after = longest - waited(processes[rank]);
        after - processes[rank].value("cpu_wait_seconds", 0.0) > seconds)
      lines.push_back(
          fmt::format("{} started {:.1f} s after the first one", named_ranks(processes, {int(rank)}), after));
  return lines;
}

std::string text_or(const json& value, const char* if_null) {
  if (value.is_null()) return if_null;
  std::string text = value.is_string() ? value.get<std::string>() : multinode::json_text(value);
  return text.empty() ? if_null : text;
}

std::string bytes_or(const json& value, const char* if_null) {
  if (!value.is_number()) return if_null;
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double bytes = value.get<double>();
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return fmt::format("{:g} {}", std::round(bytes * 10) / 10, units[unit]);
}

}  // namespace explore
