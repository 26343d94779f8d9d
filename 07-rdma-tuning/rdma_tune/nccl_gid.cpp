#include "nccl_gid.hpp"

#include <arpa/inet.h>
#include <strings.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <optional>

namespace rdma {

using multinode::Environment;

namespace {

using Address = std::array<std::uint8_t, 16>;

constexpr const char* fails = "fails";

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

// NCCL's walk over a GID table: is the next slot better than the one taken so far? Empty slots take part as `::`.
class GidSearch {
 public:
  GidSearch(const Port& port, NcclVersion version, const Environment& variables)
      : port_(port),
        goes_on_(version >= NcclVersion{2, 26, 2}),
        ipv4_(text_of(variables, "NCCL_IB_ADDR_FAMILY") != "AF_INET6"),
        roce_version_(number_of(variables, "NCCL_IB_ROCE_VERSION_NUM", 2)),
        range_(text_of(variables, "NCCL_IB_ADDR_RANGE"), ipv4_, version) {}

  std::string run() const {
    if (range_.crashes || port_.slots == 0) return fails;
    Gid taken = slot(0);
    for (int next = 1; next < port_.slots; ++next) {
      const Gid candidate = slot(next);
      if (is_ipv4(candidate.address) != ipv4_ || !range_.contains(candidate.address, ipv4_)) continue;
      if (is_ipv4(taken.address) != ipv4_) {
        taken = candidate;
        continue;
      }
      if (!is_valid(candidate.address)) continue;
      if (gives_up_at(taken) || gives_up_at(candidate)) return fails;
      const std::optional<int> old_version = version_of(taken), new_version = version_of(candidate);
      const bool is_better = !is_valid(taken.address), is_known = new_version || goes_on_;
      if ((is_known && new_version.value_or(-1) != roce_version_) || (!is_better && old_version == roce_version_))
        continue;
      if (!is_known || (!old_version && !is_better)) return may_fail;
      taken = candidate;
    }
    return std::to_string(taken.index);
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

  // Where a read of gid_attrs/types fails. In the recorded trees, folders stand for such slots.
  bool gives_up_at(const Gid& gid) const {
    return gid.type_error && !(goes_on_ && (gid.type_error == EINVAL || gid.type_error == EISDIR));
  }

  // Nothing: NCCL leaves its variable uninitialized.
  static std::optional<int> version_of(const Gid& gid) {
    if (gid.type == GidType::roce_v2) return 2;
    return gid.type == GidType::unknown ? std::optional<int>() : 1;
  }

  const Port& port_;
  bool goes_on_;  // after EINVAL, and its variable for the candidate's version is initialized
  bool ipv4_;
  int roce_version_;
  Range range_;
};

std::string takes(const Port& port, NcclVersion version, const Environment& variables) {
  const bool is_automatic = version >= NcclVersion{2, 21, 0}, is_infiniband = port.link_layer == LinkLayer::infiniband;
  if (is_infiniband && version >= NcclVersion{2, 22, 0})
    return number_of(variables, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1) < 0 ? fails : "used";
  const int index = number_of(variables, "NCCL_IB_GID_INDEX", is_automatic ? -1 : 0);
  std::string gid = index < 0 || index >= port.slots ? fails : std::to_string(index);
  if (index < 0 && is_automatic) gid = GidSearch(port, version, variables).run();
  return is_infiniband && std::isdigit(static_cast<unsigned char>(gid[0])) ? "used" : gid;  // it looks, and may fail
}

// The list of names in NCCL_IB_HCA: ^ excludes, = compares whole names.
class NameList {
 public:
  explicit NameList(std::string_view text) {
    if (text.starts_with('^')) excludes_ = true, text.remove_prefix(1);
    if (text.starts_with('=')) exact_ = true, text.remove_prefix(1);
    while (!text.empty() && names_.size() < most) {
      const std::string_view item = text.substr(0, text.find(','));
      text.remove_prefix(std::min(item.size() + 1, text.size()));
      const std::size_t colon = item.find(':');
      const std::string name(item.substr(0, colon));
      if (name.empty()) continue;
      names_.push_back({name, colon == item.npos ? any : std::atoi(std::string(item.substr(colon + 1)).c_str())});
    }
  }

  bool selects(const std::string& name, int port) const {
    const bool found =
        names_.empty() || std::ranges::any_of(names_, [&](const Item& item) {
          return (exact_ ? name == item.name : name.starts_with(item.name)) && (item.port == any || item.port == port);
        });
    return found != excludes_;
  }

  static constexpr std::size_t most = 32;  // names, and ports

 private:
  static constexpr int any = -1;
  struct Item {
    std::string name;
    int port;
  };
  bool excludes_ = false, exact_ = false;
  std::vector<Item> names_;
};

}  // namespace

std::string NcclVersion::text() const {
  return std::to_string(major) + "." + std::to_string(minor) +
         (patch == newest_patch ? "" : "." + std::to_string(patch));
}

std::vector<NcclPort> nccl_ports(const System& system, NcclVersion version, const Environment& variables) {
  const std::string net = text_of(variables, "NCCL_NET");
  if ((!net.empty() && strcasecmp(net.c_str(), "IB") != 0) || number_of(variables, "NCCL_IB_DISABLE", 0) != 0)
    return {};
  const NameList list(text_of(variables, "NCCL_IB_HCA"));
  std::vector<NcclPort> ports;
  for (const Device& device : system.devices)
    for (const Port& port : device.ports)
      if (ports.size() < NameList::most && device.missing_node.empty() && port.is_active() &&
          port.link_layer != LinkLayer::unknown && list.selects(device.name, port.number))
        ports.push_back({&device, &port, device.is_iwarp() ? fails : takes(port, version, variables)});
  return ports;
}

}  // namespace rdma
