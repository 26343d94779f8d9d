// comparison.hpp: is the environment the same everywhere? Pure functions of what all processes report about themselves,
// in order of rank (reference.md lists the members).
#pragma once

#include <multinode/node/groups.hpp>

#include <nlohmann/json_fwd.hpp>

#include <iosfwd>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace explore {

using Processes = std::vector<nlohmann::json>;

// A value as text; `if_null` if there is none.
std::string text_or(const nlohmann::json& value, const char* if_null);
std::string bytes_or(const nlohmann::json& value, const char* if_null);  // "8 MiB", "23.5 GiB"

// What is compared: a member of each process, as text.
struct Item {
  std::string_view name;  // as --require-equal knows it; reference.md says what it is
  const char* member;     // JSON pointer
  std::string (*text)(const nlohmann::json& value, const char* if_null) = text_or;
  const char* if_null = "none";
};
std::span<const Item> items();

// "kernel,driver" -> items. Throws UsageError for an unknown name; the message lists all names.
std::vector<Item> parse_items(std::string_view list);

// The ranks of each node.
std::map<int, std::vector<int>> ranks_of_nodes(const Processes& processes);

using multinode::Group;  // its members are ranks

// Groups of ranks with the same value, the largest group first. One group: all are equal.
std::vector<Group> groups(const Processes& processes, const Item& item);

// {"item": name, "groups": [{value, ranks, hosts}]} for every item that is not equal.
nlohmann::json differences(const Processes& processes);

// "kernel: node 1 (host b) has 6.1.0-13, the others 6.1.0-12"
std::string describe(const Processes& processes, const Item& item);

// "nodes 1-3 (hosts b, c, d)" for all processes of some nodes, "rank 5 (host b)" otherwise.
std::string named_ranks(const Processes& processes, const std::vector<int>& ranks);

// One line per required file, command or library that a process lacks: "command python3 is missing on node 1 (host b):
// not on the PATH". Empty: nothing is missing.
std::vector<std::string> missing(const Processes& processes);

// One line per node whose processes would start more threads than it has CPUs (oversubscription), with advice.
std::vector<std::string> oversubscribed(const Processes& processes);

// One line per node that has more CPUs than its processes may use, which are less than a CPU each.
std::vector<std::string> crowded(const Processes& processes);

// One line per process that started so many seconds after the first one. What it waited for a CPU does not count: other
// work on its node took that.
std::vector<std::string> late(const Processes& processes, double seconds);

// print.cpp: the report for people: one row per process, one block per node.
void print(const Processes& processes, std::ostream& out);

}  // namespace explore
