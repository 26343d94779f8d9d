#include "simulate.hpp"

#include <multinode/check.hpp>
#include <multinode/files.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>

namespace rdma {

using multinode::number_of;

namespace po = boost::program_options;
using multinode::UsageError;

namespace {

int parse_number(const std::string& text, const std::string& name) {
  if (const auto number = number_of<int>(text)) return *number;
  throw UsageError(name + " must be a number, not '" + text + "'");
}

Subnet parse_range(const std::string& text) {
  try {
    return Subnet::parse(text);
  } catch (const UsageError&) {
    throw UsageError("NCCL_IB_ADDR_RANGE must be a network such as 10.0.0.0/16, not '" + text + "'");
  }
}

bool is_zero_but(const std::array<std::uint8_t, 16>& address, std::size_t first) {
  return std::all_of(address.begin() + static_cast<std::ptrdiff_t>(first), address.end(),
                     [](std::uint8_t byte) { return byte == 0; });
}

// NCCL's walk over a GID table, slot by slot: whether the next one is better than the best so far. Empty slots count;
// they are the IPv6 address ::.
class Walk {
 public:
  Walk(const Port& port, NcclVersion version, const NcclSettings& settings)
      : port_(port), tolerates_einval_(version >= NcclVersion{2, 26, 2}) {
    ipv4_ = settings.family.value_or("AF_INET") != "AF_INET6";
    roce_version_ = settings.roce_version.value_or(2);
    if (settings.range && settings.range->is_ipv4() == ipv4_) range_ = settings.range;  // else it is not looked at
  }

  Simulated run() {
    Simulated best{0, "where the search starts: it found none better"};
    for (int next = 1; next < port_.slots; ++next) {
      const Gid current = slot(best.index), candidate = slot(next);
      const bool fits = candidate.is_ipv4() == ipv4_ && (!range_ || range_->contains(candidate.address));
      if (!fits) continue;
      if (current.is_ipv4() != ipv4_) {
        best = {next, std::string("the first of the address family AF_INET") + (ipv4_ ? "" : "6")};
        continue;
      }
      if (!is_valid(candidate)) continue;
      const std::optional<int> old_version = version_of(current), new_version = version_of(candidate);
      if (!old_version || !new_version)
        return {-1, "it cannot read gid_attrs/types/" + std::to_string(old_version ? next : best.index)};
      if ((*old_version != *new_version || !is_valid(current)) && *new_version == roce_version_)
        best = {next, "the first of RoCE v" + std::to_string(roce_version_)};
    }
    return best;
  }

 private:
  Gid slot(int index) const {
    const auto found = std::ranges::find(port_.gids, index, &Gid::index);
    if (found != port_.gids.end()) return *found;
    Gid empty;
    empty.index = index;
    empty.unreadable = "type: Invalid argument";
    return empty;
  }

  static bool is_valid(const Gid& gid) {
    const bool link_local =
        gid.address[0] == 0xfe && gid.address[1] == 0x80 &&
        std::all_of(gid.address.begin() + 2, gid.address.begin() + 8, [](std::uint8_t byte) { return byte == 0; });
    return !is_zero_but(gid.address, 0) && !link_local;
  }

  // Nothing: NCCL gives up. 0: neither v1 nor v2, as far as it knows.
  std::optional<int> version_of(const Gid& gid) const {
    if (gid.type == GidType::roce_v1 || gid.type == GidType::infiniband) return 1;
    if (gid.type == GidType::roce_v2) return 2;
    if (gid.unreadable.starts_with("type: ") && !tolerates_einval_) return {};
    return 0;
  }

  const Port& port_;
  bool tolerates_einval_;
  bool ipv4_;
  int roce_version_;
  std::optional<Subnet> range_;
};

}  // namespace

NcclSettings NcclSettings::read(const multinode::Environment& environment) {
  NcclSettings settings;
  const auto find = [&](const char* name) -> const std::string* {
    const auto found = environment.find(name);
    return found == environment.end() || found->second.empty() ? nullptr : &found->second;
  };
  if (const auto* text = find("NCCL_IB_GID_INDEX")) settings.gid_index = parse_number(*text, "NCCL_IB_GID_INDEX");
  if (const auto* text = find("NCCL_IB_ROCE_VERSION_NUM"))
    settings.roce_version = parse_number(*text, "NCCL_IB_ROCE_VERSION_NUM");
  if (const auto* text = find("NCCL_IB_ADDR_FAMILY")) settings.family = *text;
  if (const auto* text = find("NCCL_IB_ADDR_RANGE")) settings.range = parse_range(*text);
  return settings;
}

Simulated simulate_nccl(const Port& port, NcclVersion version, const NcclSettings& settings) {
  if (port.link_layer == LinkLayer::infiniband) return {0, "InfiniBand: the index is not used"};
  const bool automatic = version >= NcclVersion{2, 21, 0};
  const int index = settings.gid_index.value_or(automatic ? -1 : 0);
  if (index >= 0) return {index, settings.gid_index ? "NCCL_IB_GID_INDEX" : "the default before 2.21"};
  if (!automatic) return {-1, "before 2.21 there is no automatic choice"};
  return Walk(port, version, settings).run();
}

int run_simulate(int argc, const char* const* argv) {
  SystemOptions from;
  WantedOptions wanted;
  NcclVersion version;
  NcclSettings settings = NcclSettings::read(multinode::current_environment());
  po::options_description known("What NCCL itself would choose; its variables are taken from the environment too");
  known.add_options()("nccl", po::value<std::string>()->required()->notifier([&](const std::string& text) {
    version = parse_nccl_version(text, "--nccl");
  }),
                      "its version, as 2.20 or 2.26.2")(
      "gid-index", po::value<int>()->notifier([&](int index) { settings.gid_index = index; }), "NCCL_IB_GID_INDEX")(
      "roce-version-num", po::value<int>()->notifier([&](int number) { settings.roce_version = number; }),
      "NCCL_IB_ROCE_VERSION_NUM")(
      "addr-family", po::value<std::string>()->notifier([&](const std::string& name) { settings.family = name; }),
      "NCCL_IB_ADDR_FAMILY: AF_INET or AF_INET6")(
      "addr-range",
      po::value<std::string>()->notifier([&](const std::string& text) { settings.range = parse_range(text); }),
      "NCCL_IB_ADDR_RANGE, as 10.0.0.0/16");
  known.add(from.description()).add(wanted.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;

  const System system = read_system(from.sysfs);
  const Choice choice = choose(system, wanted.wanted);
  for (const std::string& problem : system.problems) std::cerr << "rdma_tune: " + problem + "\n";
  nlohmann::json json{{"nccl", version.text()}, {"ports", nlohmann::json::array()}};
  multinode::Table table({"device", "port", "right", "NCCL " + version.text(), "why", "verdict"});
  bool same = true;
  for (const PortChoice& port : choice.ports) {
    if (!port.usable) continue;
    const Simulated nccl = simulate_nccl(*port.port, version, settings);
    const bool needs_none = port.chosen < 0;
    const bool right = needs_none || nccl.index == port.chosen;
    same &= right;
    std::string verdict = "the same";
    if (!right && nccl.index < 0) {
      verdict = "WRONG: NCCL fails";
    } else if (!right) {
      const auto gid = std::ranges::find(port.port->gids, nccl.index, &Gid::index);
      verdict = "WRONG: " + (gid == port.port->gids.end()
                                 ? "an empty slot"
                                 : port.gids[static_cast<std::size_t>(gid - port.port->gids.begin())].reason);
    }
    table.add({port.device->name, std::to_string(port.port->number), needs_none ? "-" : std::to_string(port.chosen),
               nccl.index < 0 ? "fails" : std::to_string(nccl.index), nccl.reason, verdict});
    json["ports"].push_back({{"device", port.device->name},
                             {"port", port.port->number},
                             {"right", port.chosen},
                             {"nccl", nccl.index},
                             {"reason", nccl.reason},
                             {"same", right}});
  }
  multinode::JsonLines(from.json).write(json);
  if (!choice.has_rdma()) {
    std::cout << "no usable RDMA port: NCCL takes sockets\n";
    return multinode::exit_right;
  }
  table.print(std::cout);
  if (!same)
    std::cout << "warning: NCCL " + version.text() +
                     " would not pick the right GID by itself: see rdma_tune --export\n";
  return multinode::exit_right;
}

}  // namespace rdma
