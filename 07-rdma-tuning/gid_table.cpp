// Prints the GID table of each RDMA port and picks the index of RoCE v2 over IPv4, as the tutorial's two greps do.
//
//   g++ -std=c++20 -O2 gid_table.cpp -o gid_table
//   ./gid_table            (or ./gid_table FOLDER to read a copy of /sys)
//
// Exit status: 0 if each active RoCE port has such a GID and NCCL_IB_GID_INDEX, where it is set, holds its index;
// 1 if not, or if a folder cannot be read; 77 if there is no RDMA device.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace fs = std::filesystem;

// The names of a folder's entries, sorted.
std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> all;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder)) all.insert(entry.path().filename());
  return all;
}

// The first line of a file; "?" for a file that cannot be read, such as the type of a slot that belongs to another pod.
std::string read(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line.empty() ? "?" : line;
}

// 10.1.0.5 for the GID 0000:0000:0000:0000:0000:ffff:0a01:0005, and "-" for one that is not made of an IPv4 address.
std::string ipv4(const std::string& gid) {
  if (!gid.starts_with("0000:0000:0000:0000:0000:ffff:") || gid.size() != 39) return "-";
  const unsigned long high = std::strtoul(gid.c_str() + 30, nullptr, 16),
                      low = std::strtoul(gid.c_str() + 35, nullptr, 16);
  return std::to_string(high >> 8) + "." + std::to_string(high & 255) + "." + std::to_string(low >> 8) + "." +
         std::to_string(low & 255);
}

int show(int argc, char** argv) {
  const fs::path devices = fs::path(argc > 1 ? argv[1] : "/sys") / "class/infiniband";
  const char* variable = std::getenv("NCCL_IB_GID_INDEX");
  if (variable && !*variable) variable = nullptr;  // NCCL takes an empty one for none
  if (names(devices).empty()) {
    std::printf("no RDMA device: %s has no entry. NCCL and MPI will use TCP\n", devices.c_str());
    return 77;
  }

  std::string verdicts;
  bool right = true;
  std::printf("%-12s %4s %5s  %-39s  %-10s %-10s %s\n", "device", "port", "index", "GID", "type", "netdev", "IPv4");
  for (const std::string& device : names(devices)) {
    for (const std::string& port : names(devices / device / "ports")) {
      const fs::path folder = devices / device / "ports" / port;
      int chosen = -1;
      std::string address;
      // By number, as NCCL does: sorted by name, 10 would come before 9.
      for (int index = 0; fs::exists(folder / "gids" / std::to_string(index)); ++index) {
        const std::string slot = std::to_string(index), gid = read(folder / "gids" / slot);
        if (gid.find_first_not_of("0:") == gid.npos) continue;  // an empty slot
        const std::string type = read(folder / "gid_attrs/types" / slot);
        const std::string netdev = read(folder / "gid_attrs/ndevs" / slot);
        std::printf("%-12s %4s %5d  %-39s  %-10s %-10s %s\n", device.c_str(), port.c_str(), index, gid.c_str(),
                    type.c_str(), netdev.c_str(), ipv4(gid).c_str());
        if (chosen < 0 && type == "RoCE v2" && ipv4(gid) != "-") {
          chosen = index;
          address = ipv4(gid);
        }
      }

      const std::string name = device + " port " + port;
      if (read(folder / "link_layer") != "Ethernet") {
        verdicts += name + ": not RoCE, so NCCL ignores NCCL_IB_GID_INDEX\n";
      } else if (const std::string state = read(folder / "state"); state.find("ACTIVE") == state.npos) {
        verdicts += name + ": not used, its state is " + state + "\n";
      } else if (chosen < 0) {
        verdicts += "WRONG: " + name + " has no GID of type RoCE v2 with an IPv4 address\n";
        right = false;
      } else if (variable && std::to_string(chosen) != variable) {
        verdicts += "WRONG: " + name + ": NCCL_IB_GID_INDEX is " + variable + ", index " + std::to_string(chosen) +
                    " is RoCE v2 over IPv4\n";
        right = false;
      } else {
        verdicts += "RIGHT: " + name + ": index " + std::to_string(chosen) + " is RoCE v2 over IPv4, " + address + "\n";
      }
    }
  }
  std::printf("\n%s", verdicts.c_str());
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("gid_table: standard output"), 1;
  return right ? 0 : 1;
}

int main(int argc, char** argv) {
  try {
    return show(argc, argv);
  } catch (const fs::filesystem_error& e) {  // a folder that cannot be read, or a loop of links
    std::fprintf(stderr, "gid_table: %s\n", e.what());
    return 1;
  }
}
