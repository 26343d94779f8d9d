// The first RoCE v2 slot with an IPv4 address, as NCCL takes it. On the machine on which it was written it was right
// for a year. On a node with a bond it takes another index than NCCL, and on a third node it finds none. Why? Repair
// it.
//
//   g++ -std=c++20 -O2 slots.cpp -o slots
//   ./slots
//
// Exit status: 0 if the index is right on all three nodes, 1 if not.
// After: gid_table.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line;
}

// The index in the folder of a port, or -1. TODO (exercise): on which nodes is it wrong?
int choose(const fs::path& port) {
  std::set<std::string> slots;
  for (const auto& entry : fs::directory_iterator(port / "gids")) slots.insert(entry.path().filename());
  for (const std::string& slot : slots) {
    const std::string gid = read(port / "gids" / slot);
    if (gid.find_first_not_of("0:") == gid.npos) break;  // an empty slot
    if (read(port / "gid_attrs/types" / slot) == "RoCE v2" && gid.find(":ffff:") != gid.npos) return std::stoi(slot);
  }
  return -1;
}

int main() {
  const std::string local = "fe80:0000:0000:0000:ba3f:d2ff:fe12:3456", ipv4 = "0000:0000:0000:0000:0000:ffff:0a01:0005",
                    other = "0000:0000:0000:0000:0000:ffff:0a02:0005",
                    empty = "0000:0000:0000:0000:0000:0000:0000:0000";
  const struct {
    const char* name;
    std::map<int, std::string> gids;  // RoCE v2; all others up to 15 are empty
    int index;
  } nodes[] = {{"the first node", {{0, local}, {1, ipv4}}, 1},
               {"a node with a bond", {{0, local}, {1, local}, {2, ipv4}, {10, other}}, 2},
               {"a node whose first slots are empty", {{12, local}, {13, ipv4}}, 13}};
  bool right = true;
  for (const auto& [name, gids, index] : nodes) {
    const fs::path port = "slots.port";
    fs::create_directories(port / "gids");
    fs::create_directories(port / "gid_attrs/types");
    for (int slot = 0; slot < 16; ++slot) {
      const auto gid = gids.find(slot);
      std::ofstream(port / "gids" / std::to_string(slot)) << (gid == gids.end() ? empty : gid->second) << "\n";
      std::ofstream(port / "gid_attrs/types" / std::to_string(slot)) << "RoCE v2\n";
    }
    const int chosen = choose(port);
    std::printf("%s: %s: index %d\n", chosen == index ? "RIGHT" : "WRONG", name, chosen);
    right = right && chosen == index;
    fs::remove_all(port);
  }
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("slots: standard output"), 1;
  return right ? 0 : 1;
}
