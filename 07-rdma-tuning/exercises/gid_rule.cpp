// Exercise: a better rule than the tutorial's two greps. Skip addresses that are valid on one cable only where there
// are others, and take IPv6 on a fabric without IPv4.
//
//   g++ -std=c++20 -O2 gid_rule.cpp -o gid_rule
//   ./gid_rule
//
// Exit status: 0 if the rule picks the right index in every table, 1 if not.
// After: gid_table.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <vector>

struct Gid {
  std::string address, type;
};

// The index of the GID to use, or -1.
int choose(const std::vector<Gid>& table) {
  // TODO (exercise): 169.254.0.0/16 (ffff:a9fe:...) and fe80 are link-local. Take IPv6 before 169.254, and never fe80.
  for (std::size_t i = 0; i < table.size(); ++i)
    if (table[i].type == "RoCE v2" && table[i].address.starts_with("0000:0000:0000:0000:0000:ffff:"))
      return static_cast<int>(i);
  return -1;
}

int main() {
  const Gid local{"fe80:0000:0000:0000:ba3f:d2ff:fe12:3456", "RoCE v2"};
  const Gid dhcp_failed{"0000:0000:0000:0000:0000:ffff:a9fe:0709", "RoCE v2"};  // 169.254.7.9
  const Gid ipv4{"0000:0000:0000:0000:0000:ffff:0a01:0005", "RoCE v2"};         // 10.1.0.5
  const Gid ipv4_v1{"0000:0000:0000:0000:0000:ffff:0a01:0005", "IB/RoCE v1"};
  const Gid ipv6{"fd00:0010:0001:0000:0000:0000:0000:0005", "RoCE v2"};
  const struct {
    const char* name;
    std::vector<Gid> table;
    int index;
  } cases[] = {{"IPv4 and IPv6", {local, ipv6, ipv4_v1, ipv4}, 3},
               {"DHCP failed first", {local, dhcp_failed, ipv4_v1, ipv4}, 3},
               {"IPv6 only", {local, ipv6}, 1},
               {"nothing but link-local", {local, dhcp_failed}, 1}};
  bool right = true;
  for (const auto& [name, table, index] : cases) {
    const int chosen = choose(table);
    std::printf("%s: %s: index %d\n", chosen == index ? "RIGHT" : "WRONG", name, chosen);
    right = right && chosen == index;
  }
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("gid_rule: standard output"), 1;
  return right ? 0 : 1;
}
