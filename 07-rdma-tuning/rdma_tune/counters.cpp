#include "counters.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/node/devices.hpp>

#include <algorithm>
#include <array>

namespace rdma {

using multinode::is_there;
using multinode::names_in;
using multinode::number_of;
using multinode::read_number;
using multinode::read_text;

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

// Where a driver counts, and what a count is worth. `sent` and `received` are sums, since irdma counts IPv4 and IPv6
// apart. `delay`: the driver itself fetches them no more often.
struct Source {
  std::array<const char*, 2> sent, received;
  CounterUnit unit = CounterUnit::bytes;
  std::uint64_t worth = 1;
  std::chrono::milliseconds delay{0};
};
constexpr Source sources[] = {
    // mlx4, mlx5, hfi1 and others, in units of 4 octets
    {{"counters/port_xmit_data"}, {"counters/port_rcv_data"}, CounterUnit::bytes, 4},
    {{"hw_counters/ip4OutOctets", "hw_counters/ip6OutOctets"}, {"hw_counters/ip4InOctets", "hw_counters/ip6InOctets"}},
    // bnxt_re, efa, mana. Broadcom's card writes its statistics to memory once a second.
    {{"hw_counters/tx_bytes"}, {"hw_counters/rx_bytes"}, CounterUnit::bytes, 1, 1100ms},
    {{"hw_counters/hw_tx_bytes_cnt"}, {"hw_counters/hw_rx_bytes_cnt"}},            // erdma
    {{"hw_counters/sent_pkts"}, {"hw_counters/rcvd_pkts"}, CounterUnit::packets},  // rxe: there are no bytes
};

// What a net device stands on: the members of a bond, the interface of a VLAN.
std::vector<std::string> lower_devices(const fs::path& net_device) {
  std::vector<std::string> lower;
  for (const std::string& entry : names_in(net_device))
    if (entry.starts_with("lower_")) lower.push_back(entry.substr(6));
  return lower;
}

// Those that count a net device's bytes: itself, or what it stands on. Depth: sysfs may be anything.
void add_counting(const fs::path& nets, const std::string& name, int depth, std::vector<std::string>& into) {
  if (name.empty() || name.find('/') != name.npos || depth > 4) return;
  const auto lower = lower_devices(nets / name);
  for (const std::string& one : lower) add_counting(nets, one, depth + 1, into);
  if (lower.empty() && std::find(into.begin(), into.end(), name) == into.end()) into.push_back(name);
}

// nullopt: no such file, one that cannot be read, which is a problem, or no number: "N/A (no PMA)".
std::optional<std::uint64_t> count(const fs::path& file, std::vector<std::string>& problems) {
  if (!is_there(file)) return std::nullopt;
  const auto text = read_text(file);
  if (!text) {
    problems.push_back(file.string() + ": cannot be read");
    return std::nullopt;
  }
  return number_of<std::uint64_t>(*text);
}

std::optional<std::uint64_t> sum(const fs::path& port, const std::array<const char*, 2>& files,
                                 std::vector<std::string>& problems) {
  std::uint64_t sum = 0;
  for (const char* file : files) {
    if (!file) continue;
    const auto number = count(port / file, problems);
    if (!number) return std::nullopt;
    sum += *number;
  }
  return sum;
}

void read_port(const fs::path& port, PortCount& into, Counters& counters) {
  for (const Source& source : sources) {
    const auto sent = sum(port, source.sent, counters.problems),
               received = sum(port, source.received, counters.problems);
    if (!sent || !received) continue;
    into.source = source.sent[0] + std::string(source.worth > 1 ? " x 4" : "");
    into.unit = source.unit;
    into.sent = *sent * source.worth;
    into.received = *received * source.worth;
    into.at_limit = *sent == UINT32_MAX || *received == UINT32_MAX;
    counters.delay = std::max(counters.delay, source.delay);
    break;
  }
  if (const auto lifespan = read_number<unsigned>(port / "hw_counters/lifespan"))
    counters.delay = std::max(counters.delay, std::chrono::milliseconds(std::min(*lifespan, 10'000u)));
}

}  // namespace

Counters read_counters(const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error))
    throw multinode::UsageError("--sysfs: " + root.string() + " is not a folder; /sys is the usual one");
  Counters counters;
  const fs::path devices = root / "class/infiniband", nets = root / "class/net";
  for (const multinode::RdmaPort& found : multinode::rdma_ports(root)) {
    const auto parent = read_text(devices / found.device / "parent");  // of rxe: its net device
    const auto interfaces = names_in(devices / found.device / "device/net");
    PortCount port;
    port.device = found.device;
    port.port = number_of<int>(found.number).value_or(1);
    port.infiniband = found.link_layer == "InfiniBand";
    port.active = found.is_active();
    read_port(found.folder, port, counters);
    port.software = parent.has_value() || port.unit == CounterUnit::packets;
    // A virtual device without `parent`: the GID table names the net device too.
    if (parent && !parent->empty())
      add_counting(nets, *parent, 0, port.net_devices);
    else if (!interfaces.empty())
      for (const std::string& name : interfaces) add_counting(nets, name, 0, port.net_devices);
    else
      add_counting(nets, read_text(found.folder / "gid_attrs/ndevs/0").value_or(""), 0, port.net_devices);
    counters.ports.push_back(std::move(port));
  }
  for (const std::string& name : names_in(nets)) {
    const fs::path folder = nets / name;
    if (!is_there(folder / "statistics")) continue;                          // bonding_masters is a file
    if (name == "lo" || read_number<int>(folder / "type") == 772) continue;  // never between nodes
    const bool member = is_there(folder / "master") && !is_there(folder / "device");
    if (member || !lower_devices(folder).empty()) continue;
    NetCount net;
    net.name = name;
    net.mtu = read_number<int>(folder / "mtu").value_or(net.mtu);
    const auto sent = count(folder / "statistics/tx_bytes", counters.problems);
    const auto received = count(folder / "statistics/rx_bytes", counters.problems);
    if (!sent || !received) continue;
    net.sent_bytes = *sent;
    net.received_bytes = *received;
    counters.net_devices.push_back(std::move(net));
  }
  // Last: the time that reading takes is part of the interval before it, never lost between two.
  counters.when = std::chrono::steady_clock::now();
  return counters;
}

}  // namespace rdma
