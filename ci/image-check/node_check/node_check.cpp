// node_check: is there something wrong with these nodes? Looks at each node's limits, devices, memory, arithmetic,
// GPUs, clock, and at how the nodes know each other. Exit status, the same on all ranks: 0 nothing is wrong; 1
// something is, or a rank failed; 2 bad command line or environment; 77 nothing of what --only names is here.
#include "finding.hpp"
#include "gpu.hpp"
#include "health.hpp"
#include "limits.hpp"
#include "memory.hpp"
#include "names.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>

using multinode::World;
using namespace node_check;
using nlohmann::json;
namespace po = boost::program_options;

struct Options {
  multinode::CommonOptions common;
  std::vector<std::string> only, skip;
  double seconds = 0.5;
  std::string tmp;
  HealthOptions health;
  int corrupt = -1;
};

struct Look {
  const char* name;
  bool every_rank;  // else one rank a node
  std::function<Findings(World&, const Options&)> look;
};

// Nodes in order, this one's last: every node begins with its neighbour, so that none has to answer all at once.
std::vector<std::string> other_nodes(const World& world) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < world.size(); ++rank)
    if (std::ranges::find(hosts, world.host(rank)) == hosts.end()) hosts.push_back(world.host(rank));
  const auto own = std::ranges::find(hosts, world.host(world.rank()));
  std::rotate(hosts.begin(), own + 1, hosts.end());
  hosts.pop_back();
  return hosts;
}

// Each GPU is one rank's: in turn, of those that see it.
std::vector<int> own_gpus(World& world) {
  json seen = json::array();
#ifdef MULTINODE_HAVE_CUDA
  std::string error;  // look_at_devices() reports it
  for (int device = 0; device < multinode::device_count(&error); ++device) {
    char pci[32] = {};
    multinode::check(cudaDeviceGetPCIBusId(pci, sizeof pci, device));
    seen.push_back(pci);
  }
#endif
  std::map<std::string, std::vector<int>> ranks_of;  // ordered, so that all ranks share out alike
  const std::vector<std::string> all = world.gather("which GPUs", seen.dump());
  for (int rank = 0; rank < world.size(); ++rank)
    for (const json& pci : json::parse(all[static_cast<std::size_t>(rank)]))
      ranks_of[world.host(rank) + " " + pci.get<std::string>()].push_back(rank);
  std::vector<int> own;
  for (std::size_t number = 0; const auto& [gpu, ranks] : ranks_of) {
    if (ranks[number++ % ranks.size()] != world.rank()) continue;
    for (std::size_t device = 0; device < seen.size(); ++device)
      if (gpu == world.host(world.rank()) + " " + seen[device].get<std::string>())
        own.push_back(static_cast<int>(device));
  }
  return own;
}

bool corrupt_here(const World& world, const Options& options) { return world.rank() == options.corrupt; }

// How far this rank's clock is from rank 0's, which reads its own between a question and its answer: by the fastest
// answer (RFC 5905, section 8). The value is what is certain, in steps of 10 ms: 0 between clocks that are kept.
Findings look_at_clock(World& world, const Options& options) {
  const auto now = [&] {
    const std::chrono::duration<double> since_1970 = std::chrono::system_clock::now().time_since_epoch();
    return since_1970.count() + (corrupt_here(world, options) ? 5 : 0);
  };
  double ahead = 0, bound = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 10; ++round) {
    const double asked = now();
    const auto of_rank_0 =
        world.combine_on_rank_0("clock skew", "", [&](const auto&) { return fmt::format("{:.9f}", now()); });
    const double half = (now() - asked) / 2;
    if (half < bound) bound = half, ahead = asked + half - std::stod(of_rank_0);
  }
  if (world.size() == 1) return {absent("clock_skew", "one rank alone has one clock")};
  if (world.rank() == 0) return {};
  const double certain = std::max(0.0, std::abs(ahead) - bound);
  return {{"clock_skew", std::round(certain * 100) * 10, "ms", "less", certain <= 1,
           fmt::format("its clock is {:.3g} ms {} rank 0's, give or take {:.3g} ms{}", std::abs(ahead) * 1e3,
                       ahead > 0 ? "ahead of" : "behind", bound * 1e3,
                       certain <= 1 ? "" : ": start chronyd or ntpd (builds, keys and logs go by the clock)")}};
}

Findings look_at_names(World& world, const Options&) {
  const std::string& own = world.host(world.rank());
  std::vector<std::string> hosts = other_nodes(world);
  hosts.push_back(own);
  std::vector<Resolved> all;
  for (const std::string& host : hosts) all.push_back(resolve(host, std::chrono::seconds(10)));
  return {judge_names(own, all)};
}

Findings look_at_health_of(World& world, const Options& options) {
  HealthOptions health = options.health;
  if (!health.state.empty()) health.state = state_file(health.state, world.host(world.rank()));
  return look_at_health(health);
}

const std::vector<Look>& looks() {
  static const std::vector<Look> all{
      {"limits", false, [](World&, const Options& o) { return look_at_limits("/sys", o.tmp); }},
      {"devices", false, [](World&, const Options& o) { return look_at_devices(o.health.sysfs, gpus_of_cuda()); }},
      {"health", false, look_at_health_of},
      {"dcgm", false, [](World&, const Options&) { return look_at_dcgm(); }},
      {"memory_bandwidth", false,
       [](World& world, const Options& o) {
         return Findings{measure_memory_bandwidth(o.seconds, corrupt_here(world, o))};
       }},
      {"matrix_rate", false,
       [](World& world, const Options& o) { return Findings{measure_matrix_rate(o.seconds, corrupt_here(world, o))}; }},
      {"shared_memory", false, [](World&, const Options&) { return Findings{measure_shared_memory()}; }},
      {"gpu", true,
       [](World& world, const Options& o) {
         const std::vector<int> own = own_gpus(world);
         if (own.empty() && world.local_rank() != 0) return Findings{};
         return look_at_gpus(own, o.seconds, corrupt_here(world, o));
       }},
      {"clock_skew", true, look_at_clock},
      {"name_resolution", false, look_at_names},
      {"ssh", false, [](World& world, const Options&) { return Findings{log_in(other_nodes(world))}; }}};
  return all;
}

bool chosen(const Options& options, const std::string& name) {
  const auto in = [&name](const auto& names) { return std::ranges::find(names, name) != names.end(); };
  const bool slow = name == "dcgm";
  return (options.only.empty() ? !slow : in(options.only)) && !in(options.skip);
}

Findings look(World& world, const Options& options) {
  Findings all;
  for (const Look& one : looks()) {
    if (!chosen(options, one.name)) continue;
    world.barrier(one.name);  // nothing measures while another rank of its node works
    if (!one.every_rank && world.local_rank() != 0) continue;
    const auto inside = one.every_rank ? nullptr
                                       : std::make_unique<multinode::Watchdog::Operation>(world.watchdog(), one.name,
                                                                                          multinode::nobody);
    try {
      for (Finding& finding : one.look(world, options)) all.push_back(std::move(finding));
    } catch (const multinode::StoreTimeout&) {
      throw;  // another rank is gone
    } catch (const multinode::StoreLost&) {
      throw;
    } catch (const multinode::HardwareAbsent& e) {
      all.push_back(absent(one.name, e.what()));
    } catch (const std::exception& e) {
      all.push_back(faulty(one.name, e.what()));
    }
  }
  return all;
}

int report(World& world, const Options& options, const Findings& findings) {
  json mine = json::array();
  for (const Finding& finding : findings) mine.push_back(line_of(finding, world.host(world.rank()), world.rank()));
  const std::vector<std::string> all = world.gather_on_rank_0("findings", mine.dump());
  if (world.rank() != 0) return multinode::exit_right;  // all end with the worst status

  multinode::JsonLines lines(options.common.json);
  lines.write(multinode::fingerprint(world));
  int right = 0, wrong = 0, absent = 0;
  for (const std::string& of_rank : all)
    for (const json& one : json::parse(of_rank)) {
      lines.write(one);
      const json &ok = one.at("ok"), &value = one.at("value");
      const std::string what = one.at("what"), why = one.at("why");
      ++(ok.is_null() ? absent : ok == true ? right : wrong);
      if (ok == false) std::cerr << "node_check: " + what + ": " + why + "\n" << std::flush;
      std::cout << fmt::format("{:<8}{:<22} rank {} on {}: {} {}  {}\n",
                               ok.is_null() ? "absent"
                               : ok == true ? "ok"
                                            : "WRONG",
                               what, one.at("rank").dump(), one.at("host").get<std::string>(),
                               value.is_string()         ? value.get<std::string>()
                               : value.is_number_float() ? fmt::format("{:.5g}", value.get<double>())
                               : value.is_null()         ? ""
                                                         : value.dump(),
                               one.at("unit").get<std::string>(), why);
    }
  std::cout << right << " right, " << wrong << " wrong, " << absent << " absent\n" << std::flush;
  return wrong ? multinode::exit_wrong : right ? multinode::exit_right : multinode::exit_hardware_absent;
}

int main(int argc, char** argv) {
  Options options;
  multinode::Program program{"node_check", po::options_description("node_check: is something wrong with these nodes?"),
                             options.common};
  const std::string names = multinode::join(looks(), ", ", &Look::name);
  // clang-format off
  program.options.add_options()
    ("only", po::value(&options.only)->value_name("NAME"), ("look only at this; may be repeated; dcgm is not looked at by default: " + names).c_str())
    ("skip", po::value(&options.skip)->value_name("NAME"), "do not look at this; may be repeated")
    ("seconds", po::value(&options.seconds)->value_name("S")->default_value(options.seconds, "0.5"),
     "time for each measurement")
    ("tmp", po::value(&options.tmp)->value_name("DIR"), "folder for temporary files (default: TMPDIR or /tmp)")
    ("corrupt", po::value(&options.corrupt)->value_name("RANK"),
     "make this rank's data wrong, and its clock 5 s ahead: the checks must see it");
  // clang-format on
  program.options.add(options.health.description());
  program.validate = [&] {
    multinode::require_range("--seconds", options.seconds, 0.0, 3600.0);
    for (const auto& [option, given] : {std::pair{"--only", &options.only}, std::pair{"--skip", &options.skip}})
      for (const std::string& name : *given)
        if (std::ranges::none_of(looks(), [&](const Look& one) { return one.name == name; }))
          throw multinode::UsageError(std::string(option) + ": there is no '" + name + "'; there are " + names);
    // Ranks wait for those that measure; a node may have 16 GPUs to one rank.
    options.common.timeout += std::chrono::milliseconds(static_cast<long long>(32'000 * options.seconds));
  };
  return multinode::run(program, argc, argv, [&](World& world) {
    unbind();
    return report(world, options, look(world, options));
  });
}
