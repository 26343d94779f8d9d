// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/gloo_store.hpp>
#include <multinode/net/address.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
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

// The bytes of gloo::transport::tcp::Address.
struct Address {
  sockaddr_storage listener;
  ssize_t number;
};

// The address and those after it, whose numbers grow by one.
std::vector<char> series_of(Address address, std::size_t count) {
  std::vector<char> data(count * sizeof address);
  for (std::size_t i = 0; i < count; ++i, ++address.number)
    std::memcpy(data.data() + i * sizeof address, &address, sizeof address);
  return data;
}

}  // namespace

// '=' and the data, or the number of addresses, ' ' and the first of them.
std::string packed_addresses(const std::vector<char>& data) {
  std::string packed = "=" + std::string(data.begin(), data.end());
  Address first;
  if (data.size() <= sizeof first || data.size() % sizeof first != 0) return packed;
  std::memcpy(&first, data.data(), sizeof first);
  const std::size_t count = data.size() / sizeof first;
  return series_of(first, count) == data ? std::to_string(count) + " " + packed.substr(1, sizeof first) : packed;
}

std::vector<char> unpacked_addresses(std::string_view packed) {
  if (packed.starts_with('=')) return {packed.begin() + 1, packed.end()};
  const auto end = std::min(packed.find(' '), packed.size());
  const auto count = number_of<std::size_t>(packed.substr(0, end));
  Address first;
  if (!count || *count > std::size_t{protocol::max_ranks} || packed.size() != end + 1 + sizeof first)
    throw std::runtime_error("these are no addresses of gloo");
  std::memcpy(&first, packed.data() + end + 1, sizeof first);
  return series_of(first, *count);
}

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
