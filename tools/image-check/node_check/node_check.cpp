// node_check: is there something wrong with these nodes? Looks at each node's limits, devices, mounts, memory,
// arithmetic and clock. Exit status, the same on all ranks: 0 nothing is wrong; 1
// something is, or a rank failed; 2 bad command line or environment; 77 nothing of what --only names is here.
#include "findings.hpp"
#include "rates.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/communicator/libraries.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

using multinode::World;
using namespace node_check;
using nlohmann::json;
namespace po = boost::program_options;

struct Options {
  multinode::CommonOptions common;
  std::vector<std::string> only;
  double seconds = 0.5;
  std::filesystem::path tmp = temporary_folder(), root = "/";
  int corrupt = -1;
};

struct Look {
  const char* name;
  bool every_rank;  // else one rank a node
  std::function<Findings(World&, const Options&)> look;
};

// The bytes of all programs of the examples around this one, which each rank may have from another place.
Findings look_at_programs(World&, const Options&) {
  const auto folder = folder_of_examples();
  if (folder.empty()) return {absent("programs", "the examples are not around node_check")};
  std::map<std::string, std::size_t> hashes;  // in the order of their names
  for (const auto& chapter : std::filesystem::directory_iterator(folder)) {
    if (!std::isdigit(static_cast<unsigned char>(chapter.path().filename().string()[0]))) continue;
    for (const auto& file : std::filesystem::directory_iterator(chapter))
      if (file.is_regular_file() && access(file.path().c_str(), X_OK) == 0) {
        std::ifstream bytes(file.path(), std::ios::binary);
        hashes[file.path().lexically_relative(folder)] =
            std::hash<std::string>{}({std::istreambuf_iterator<char>(bytes), {}});
      }
  }
  std::string all;
  for (const auto& [name, hash] : hashes) all += name + fmt::format(" {:x}\n", hash);
  return {{"programs", fmt::format("{} with hash {:016x}", hashes.size(), std::hash<std::string>{}(all)), "", "same",
           true, folder.string()}};
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

const std::vector<Look>& looks() {
  static const std::vector<Look> all{
      {"limits", false, [](World&, const Options& o) { return look_at_limits(o.root, o.tmp); }},
      {"devices", false,
       [](World&, const Options& o) { return look_at_devices(o.root / "sys", multinode::visible_gpus()); }},
      {"mounts", false, [](World&, const Options& o) { return Findings{look_at_mounts(o.root)}; }},
      {"name_service", false, [](World&, const Options&) { return Findings{look_at_name_service()}; }},
      {"memory_bandwidth", false,
       [](World& world, const Options& o) {
         return Findings{measure_memory_bandwidth(o.seconds, corrupt_here(world, o))};
       }},
      {"matrix_rate", false,
       [](World& world, const Options& o) { return Findings{measure_matrix_rate(o.seconds, corrupt_here(world, o))}; }},
      {"clock_skew", true, look_at_clock},
      {"programs", true, look_at_programs}};
  return all;
}

Findings look(World& world, const Options& options) {
  Findings all;
  const Ticks started = ticks();
  for (const Look& one : looks()) {
    const bool chosen = options.only.empty() ? one.name != std::string("programs")
                                             : std::ranges::find(options.only, one.name) != options.only.end();
    if (!chosen) continue;
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
      all.push_back({one.name});
      all.back().blame(e.what());
    }
  }
  if (options.only.empty() && world.local_size() == 1)
    all.push_back({"other_work", other_work_since(started), "", "", true, "by other processes"});
  return all;
}

int report(World& world, const Options& options, const Findings& findings) {
  json mine = json::array();
  for (const Finding& finding : findings) mine.push_back(line_of(finding, world.host(world.rank()), world.rank()));
  const std::vector<std::string> all = world.gather_on_rank_0("findings", multinode::json_text(mine));
  if (world.rank() != 0) return multinode::exit_right;  // all end with the worst status

  multinode::JsonLines lines(options.common.json);
  lines.write(multinode::fingerprint(world));
  multinode::Table table({"", "what", "rank", "host", "value", "unit", "why"});
  int right = 0, wrong = 0, absent = 0;
  for (const std::string& of_rank : all)
    for (const json& one : json::parse(of_rank)) {
      lines.write(one);
      const json &ok = one.at("ok"), &value = one.at("value");
      const std::string what = one.at("what"), why = one.at("why");
      ++(ok.is_null() ? absent : ok == true ? right : wrong);
      if (ok == false) std::cerr << "node_check: " + what + ": " + why + "\n" << std::flush;
      table.add({ok.is_null() ? "absent"
                 : ok == true ? "ok"
                              : "WRONG",
                 what, "rank " + one.at("rank").dump(), one.at("host"),
                 value.is_string()         ? value.get<std::string>()
                 : value.is_number_float() ? fmt::format("{:.5g}", value.get<double>())
                 : value.is_null()         ? ""
                                           : value.dump(),
                 one.at("unit"), why});
    }
  table.print(std::cout);
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
    ("only", po::value(&options.only)->value_name("NAME"), ("look only at this; may be repeated: " + names + "; default: all but programs").c_str())
    ("seconds", po::value(&options.seconds)->value_name("S")->default_value(options.seconds, "0.5"),
     "time for each measurement")
    ("tmp", po::value(&options.tmp)->value_name("DIR"), "folder for temporary files (default: TMPDIR or /tmp)")
    ("root", po::value(&options.root)->value_name("DIR"), "folder with the sys and proc to look at (default: /)")
    ("corrupt", po::value(&options.corrupt)->value_name("RANK"),
     "make this rank's data wrong, and its clock 5 s ahead: the checks must see it");
  // clang-format on
  program.validate = [&] {
    multinode::require_range("--seconds", options.seconds, 0.0, 3600.0);
    for (const std::string& name : options.only)
      if (std::ranges::none_of(looks(), [&](const Look& one) { return one.name == name; }))
        throw multinode::UsageError("--only: there is no '" + name + "'; there are " + names);
    // Ranks wait for those that measure.
    options.common.timeout += std::chrono::milliseconds(static_cast<long long>(32'000 * options.seconds));
  };
  return multinode::run(program, argc, argv, [&](World& world) {
    unbind();
    return report(world, options, look(world, options));
  });
}
