#include "nccl_gid.hpp"

#include <arpa/inet.h>
#include <strings.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

namespace rdma {

using multinode::Environment;

namespace {

using Address = std::array<std::uint8_t, 16>;

std::string text_of(const Environment& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// strtoll with base 0, as NCCL has it: no digits are 0, an overflow is the default, and 64 bits are cut to 32.
int number_of(const Environment& variables, const char* name, int otherwise) {
  const std::string text = text_of(variables, name);
  if (text.empty()) return otherwise;
  errno = 0;
  const long long number = std::strtoll(text.c_str(), nullptr, 0);
  return errno ? otherwise : static_cast<int>(number);
}

bool is_zero(const Address& address, std::size_t from, std::size_t to) {
  return std::all_of(address.begin() + static_cast<std::ptrdiff_t>(from),
                     address.begin() + static_cast<std::ptrdiff_t>(to), [](std::uint8_t byte) { return byte == 0; });
}

// Multicast too: ff0e::ffff:a.b.c.d.
bool is_ipv4(const Address& a) {
  const bool starts = (a[0] == 0 && a[1] == 0) || (a[0] == 0xff && a[1] == 0x0e);
  return starts && is_zero(a, 2, 10) && a[10] == 0xff && a[11] == 0xff;
}

bool is_valid(const Address& a) {
  const bool link_local = a[0] == 0xfe && a[1] == 0x80 && is_zero(a, 2, 8);
  return !is_zero(a, 0, 16) && !link_local;
}

// NCCL_IB_ADDR_RANGE.
struct Range {
  Address address{};  // an IPv4 one in the last four bytes
  int bits = 0;       // 0 fits all, a negative number fits nothing
  bool crashes = false;

  Range(const std::string& variable, bool ipv4, NcclVersion version) {
    const std::string text = variable.substr(0, 127);
    if (text.empty()) return;
    const std::size_t slash = text.find('/');
    if (slash == text.npos) {
      crashes = version < NcclVersion{2, 23, 0};  // it writes through a null pointer
      return;
    }
    if (inet_pton(ipv4 ? AF_INET : AF_INET6, text.substr(0, slash).c_str(), &address[ipv4 ? 12 : 0]) != 1) return;
    bits = static_cast<int>(std::strtol(text.c_str() + slash + 1, nullptr, 10));
    if (bits > (ipv4 ? 32 : 128)) bits = 0;
  }

  bool contains(const Address& other, bool ipv4) const {
    if (bits < 0) return false;
    for (int bit = 0; bit < bits; ++bit) {
      const auto byte = static_cast<std::size_t>(bit / 8 + (ipv4 ? 12 : 0));
      if ((address[byte] ^ other[byte]) & (0x80 >> (bit % 8))) return false;
    }
    return true;
  }
};

// What a read of gid_attrs/types gives.
struct Version {
  std::optional<int> number;  // nothing: NCCL leaves its variable uninitialized
  std::string failure;        // NCCL gives up
};

// NCCL's walk over a GID table: is the next slot better than the one taken so far? Empty slots take part as `::`.
class GidSearch {
 public:
  GidSearch(const Port& port, NcclVersion version, const Environment& variables)
      : port_(port),
        goes_on_(version >= NcclVersion{2, 26, 2}),
        ipv4_(text_of(variables, "NCCL_IB_ADDR_FAMILY") != "AF_INET6"),
        roce_version_(number_of(variables, "NCCL_IB_ROCE_VERSION_NUM", 2)),
        range_(text_of(variables, "NCCL_IB_ADDR_RANGE"), ipv4_, version) {}

  NcclGid run() const {
    if (range_.crashes) return {.failure = "SIGSEGV"};
    Gid taken = slot(0);
    for (int next = 1; next < port_.slots; ++next) {
      const Gid candidate = slot(next);
      if (is_ipv4(candidate.address) != ipv4_ || !range_.contains(candidate.address, ipv4_)) continue;
      if (is_ipv4(taken.address) != ipv4_) {
        taken = candidate;
        continue;
      }
      if (!is_valid(candidate.address)) continue;
      const Version old_version = version_of(taken), new_version = version_of(candidate);
      for (const Version& one : {old_version, new_version})
        if (!one.failure.empty()) return {.failure = one.failure};
      const bool is_better = !is_valid(taken.address), is_known = new_version.number || goes_on_;
      if ((is_known && new_version.number.value_or(-1) != roce_version_) ||
          (!is_better && old_version.number == roce_version_))
        continue;
      if (!is_known || (!old_version.number && !is_better)) return {.failure = NcclGid::may_fail};
      taken = candidate;
    }
    return {taken.index};
  }

 private:
  Gid slot(int index) const {
    const auto found = std::ranges::lower_bound(port_.gids, index, {}, &Gid::index);
    if (found != port_.gids.end() && found->index == index) return *found;
    Gid empty;
    empty.index = index;
    empty.type_error = EINVAL;
    return empty;
  }

  Version version_of(const Gid& gid) const {
    if (gid.type == GidType::roce_v1 || gid.type == GidType::infiniband) return {1, ""};
    if (gid.type == GidType::roce_v2) return {2, ""};
    const int error = gid.type_error == EISDIR ? EINVAL : gid.type_error;  // folders stand for such slots in the trees
    if (!error || (error == EINVAL && goes_on_)) return {};
    // sysfs refuses these when a file is opened.
    const bool at_open = error == ENOENT || error == EACCES || error == EPERM;
    const char* const name = strerrorname_np(error);
    return {{},
            std::string(at_open ? "open" : "read") + " types/" + std::to_string(gid.index) + ": " +
                (name ? name : std::to_string(error))};
  }

  const Port& port_;
  bool goes_on_;  // after EINVAL, and its variable for the candidate's version is initialized
  bool ipv4_;
  int roce_version_;
  Range range_;
};

NcclGid failed_query(int index) { return {.failure = "ibv_query_gid(" + std::to_string(index) + ")"}; }

NcclGid queried(const Port& port, NcclGid gid) {
  if (gid.failure.empty() && (gid.index < 0 || gid.index >= port.slots)) return failed_query(gid.index);
  return gid;
}

NcclGid of_ethernet(const Port& port, NcclVersion version, const Environment& variables) {
  const bool is_automatic = version >= NcclVersion{2, 21, 0};
  const int index = number_of(variables, "NCCL_IB_GID_INDEX", is_automatic ? -1 : 0);
  return queried(port, index < 0 && is_automatic ? GidSearch(port, version, variables).run() : NcclGid{index});
}

NcclGid of_infiniband(const Port& port, NcclVersion version, const Environment& variables) {
  if (version < NcclVersion{2, 22, 0}) {
    const NcclGid gid = of_ethernet(port, version, variables);  // the index is not used, but a failure counts
    return gid.failure.empty() ? NcclGid{0} : gid;
  }
  const int routable = number_of(variables, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1);
  if (routable < 0) return failed_query(routable);
  const auto gid = std::ranges::find(port.gids, routable, &Gid::index);
  const bool has_flid = routable < port.slots && gid != port.gids.end() && (gid->address[4] || gid->address[5]);
  return queried(port, {has_flid ? routable : 0});
}

// A list of names as in NCCL_IB_HCA and NCCL_SOCKET_IFNAME: ^ excludes, = compares whole names.
class NameList {
 public:
  NameList(std::string_view text, std::size_t most, bool empty_port_is_any) {
    if (text.starts_with('^')) excludes_ = true, text.remove_prefix(1);
    if (text.starts_with('=')) exact_ = true, text.remove_prefix(1);
    while (!text.empty() && names_.size() < most) {
      const std::string_view item = text.substr(0, text.find(','));
      text.remove_prefix(std::min(item.size() + 1, text.size()));
      const std::size_t colon = item.find(':');
      const std::string name(item.substr(0, colon));
      if (name.empty()) continue;
      int port = any;
      if (colon != item.npos) {
        const std::string number(item.substr(colon + 1));
        const bool is_empty = number.empty() || number.starts_with(':');
        port = is_empty && empty_port_is_any ? any : std::atoi(number.c_str());
      }
      names_.push_back({name, port});
    }
  }

  bool selects(const std::string& name, int port) const {
    const bool found = names_.empty() || std::ranges::any_of(names_, [&](const Item& item) {
                         return (exact_ ? name == item.name : name.starts_with(item.name)) &&
                                (item.port == any || port == any || item.port == port);
                       });
    return found != excludes_;
  }

  static constexpr int any = -1;

 private:
  struct Item {
    std::string name;
    int port;
  };
  bool excludes_ = false, exact_ = false;
  std::vector<Item> names_;
};

void add_file(Environment& variables, const std::filesystem::path& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (line.starts_with('#') || equals == line.npos) continue;
    variables.try_emplace(line.substr(0, equals), line.substr(equals + 1));
  }
}

}  // namespace

std::string NcclVersion::text() const {
  return std::to_string(major) + "." + std::to_string(minor) +
         (patch == newest_patch ? "" : "." + std::to_string(patch));
}

NcclGid nccl_gid(const Port& port, NcclVersion version, const Environment& variables) {
  return (port.link_layer == LinkLayer::infiniband ? of_infiniband : of_ethernet)(port, version, variables);
}

const NcclGid* find_gid(const std::vector<NcclPort>& ports, const Port* port) {
  const auto found = std::ranges::find(ports, port, &NcclPort::port);
  return found == ports.end() ? nullptr : &found->gid;
}

std::vector<NcclPort> nccl_ports(const System& system, NcclVersion version, const Environment& variables) {
  const std::string net = text_of(variables, "NCCL_NET");
  const std::string interfaces = text_of(variables, "NCCL_SOCKET_IFNAME");
  const NameList wanted(interfaces, 16, false);
  const bool no_interface =
      !interfaces.empty() && !system.net_devices.empty() &&
      std::ranges::none_of(system.net_devices, [&](const NetDevice& one) { return wanted.selects(one.name, -1); });
  if (no_interface || (!net.empty() && strcasecmp(net.c_str(), "IB") != 0) ||
      number_of(variables, "NCCL_IB_DISABLE", 0) != 0)
    return {};
  constexpr std::size_t most = 32;
  const NameList list(text_of(variables, "NCCL_IB_HCA"), most, version >= NcclVersion{2, 30, 0});
  std::vector<NcclPort> ports;
  for (const Device& device : system.devices)
    for (const Port& port : device.ports)
      if (ports.size() < most && port.is_active() && port.link_layer != LinkLayer::unknown &&
          list.selects(device.name, port.number))
        ports.push_back({&device, &port, nccl_gid(port, version, variables)});
  return ports;
}

Environment with_nccl_files(Environment variables, const std::filesystem::path& sysfs, NcclVersion version) {
  const std::filesystem::path machine = machine_of(sysfs);
  const std::string named = text_of(variables, "NCCL_CONF_FILE");
  if (!named.empty() && version >= NcclVersion{2, 23, 0})
    add_file(variables, named);
  else if (const std::string home = text_of(variables, "HOME"); machine == "/" && !home.empty())
    add_file(variables, std::filesystem::path(home) / ".nccl.conf");
  if (!machine.empty()) add_file(variables, machine / "etc/nccl.conf");
  return variables;
}

}  // namespace rdma
