// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/communicator/gloo_store.hpp>
#include <multinode/net/address.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace multinode {

namespace {

// "" if there is none that others can reach.
std::string routed_address(const std::string& host) {
  std::string address = address_towards({host, 9});
  return is_loopback(address) ? "" : address;
}

// Identifies the network namespace and the kernel: processes with the same identity reach each other over loopback.
std::string network_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", error).string() + " " +
         (boot.empty() || error ? host_name() : "");
}

}  // namespace

std::string gloo_address(World& world) {
  const std::vector<std::string> networks = world.gather("addresses for gloo", network_identity());
  const std::string& network = networks[static_cast<std::size_t>(world.rank())];
  if (std::ranges::all_of(networks, [&](const std::string& other) { return other == network; })) return "127.0.0.1";

  std::string address;
  if (const std::string& master = world.launch().master_address.value; !master.empty())
    address = routed_address(master);
  for (int r = 0; address.empty() && r < world.size(); ++r)
    if (networks[static_cast<std::size_t>(r)] != network) address = routed_address(world.host(r));
  if (address.empty()) address = interface_address();
  if (address.empty())
    throw UsageError("gloo: " + host_name() +
                     " has no network address that other machines can reach: bring up a network interface");
  return address;
}

}  // namespace multinode
