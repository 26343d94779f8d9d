// What kind of address is a GID? It is an IPv6 address in eight groups of four hexadecimal digits, and an IPv4 address
// is the last two of them, behind five groups of 0 and the group ffff.
//
//   g++ -std=c++20 -O2 gid_kind.cpp -o gid_kind
//   ./gid_kind
//
// Exit status: 0 if all are right, 1 if not.
// After: gid_table.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

// TODO (exercise): "empty" (all digits 0), "link-local" (fe80, or the IPv4 addresses 169.254.x.y), "IPv4 10.1.0.5", or
// "IPv6".
std::string kind(const std::string& gid) { return gid.empty() ? "empty" : "IPv6"; }

int main() {
  const struct {
    const char *gid, *kind;
  } cases[] = {{"fe80:0000:0000:0000:ba3f:d2ff:fe12:3456", "link-local"},
               {"0000:0000:0000:0000:0000:ffff:0a01:0005", "IPv4 10.1.0.5"},
               {"0000:0000:0000:0000:0000:ffff:c0a8:ff01", "IPv4 192.168.255.1"},
               {"0000:0000:0000:0000:0000:ffff:a9fe:0709", "link-local"},
               {"fd00:0010:0001:0000:0000:0000:0000:0005", "IPv6"},
               {"0000:0000:0000:0000:0000:0000:0000:0000", "empty"}};
  bool right = true;
  for (const auto& [gid, known] : cases) {
    const std::string found = kind(gid);
    std::printf("%s: %s is %s\n", found == known ? "RIGHT" : "WRONG", gid, found.c_str());
    right = right && found == known;
  }
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("gid_kind: standard output"), 1;
  return right ? 0 : 1;
}
