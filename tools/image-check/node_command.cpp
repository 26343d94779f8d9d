#include "commands.hpp"

#include "node_check/findings.hpp"
#include "process.hpp"
#include "site.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <iostream>
#include <sstream>

namespace image_check {
namespace {

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  return last;
}

}  // namespace

int look(int argc, char** argv, const std::string&) {
  if (argc != 4) throw multinode::UsageError("look: for image-check node alone: JSON ROOT INVENTORY");
  multinode::JsonLines lines(argv[1]);
  const std::filesystem::path root = argv[2];
  const auto inventory = nlohmann::json::parse(argv[3]);
  const auto tell = [&](const node_check::Findings& findings) {
    for (const auto& finding : findings) lines.write(node_check::line_of(finding, multinode::host_name(), 0));
  };
  node_check::unbind();
  tell(node_check::look_at_limits(root));
  tell(node_check::look_at_devices(root / "sys", multinode::gpus_of_driver(root)));
  tell({node_check::look_at_mounts(root), node_check::look_at_name_service()});
  if (!inventory.is_null()) tell({node_check::look_at_inventory(inventory, root)});
  return multinode::exit_right;
}

int check_node(int argc, char** argv, const std::string&) {
  using std::chrono::milliseconds;
  namespace po = boost::program_options;
  double budget = 10;
  std::string site, json_file;
  std::filesystem::path root;
  po::options_description known("node: is this node fit for a job? One line and an exit status");
  known.add_options()  //
      ("budget", po::value(&budget)->value_name("SECONDS")->default_value(budget),
       "a node that has not answered by then is bad")                                                         //
      ("site", po::value(&site)->value_name("FILE"), "the site's file: what this node must have")             //
      ("json", po::value(&json_file)->value_name("FILE"), "file for all findings, one JSON object per line")  //
      ("root", po::value(&root)->value_name("DIR")->default_value("/"), "folder with the sys and proc to look at");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  multinode::require_range("budget", budget, 1.0, 3600.0);
  const auto share = [&](double part) { return milliseconds(std::lround(1000 * budget * part)); };
  const std::string host = multinode::host_name();
  const MemoryFile log, json;
  const Command program{std::filesystem::read_symlink("/proc/self/exe"), "look", json.path(),
                        std::filesystem::absolute(root),
                        site.empty() ? "null" : inventory_of(read_site(site), host).dump()};

  // 60 % of the budget to answer, the rest to end what does not.
  const Outcome outcome = Processes(program, {}, log.path(), share(0.6), {share(0.05), share(0.05)}).end();

  std::vector<std::string> wrong;
  int passed = 0, absent = 0;
  std::istringstream lines(json.text());
  for (std::string line; std::getline(lines, line);) {
    const auto finding = nlohmann::json::parse(line, nullptr, false);
    if (!finding.is_object() || !finding.contains("what")) continue;
    const std::string name = finding.at("what"), why = name + ": " + finding.at("why").get<std::string>();
    const auto& ok = finding.at("ok");
    if (ok == false)
      wrong.push_back(why);
    else
      ++(ok.is_null() ? absent : passed);
  }
  std::string said;
  int status = multinode::exit_wrong;
  if (outcome.timed_out && had_no_cpu(outcome, budget * 0.6)) {
    status = multinode::exit_untestable;
    said = fmt::format("could not test: other work took {:.0f} % of the CPU time: try again on a quiet node",
                       100 * outcome.other_work);
  } else if (outcome.timed_out) {
    said = fmt::format(
        "FAIL: the node did not answer within {:.3g} s (60 % of --budget){}", budget * 0.6,
        outcome.stuck > 0 ? ": a process waits in the kernel (look at dmesg and network file systems)" : "");
  } else if (!wrong.empty()) {
    said = "FAIL: " + multinode::join(wrong, "; ");
  } else if (outcome.exit_status == multinode::exit_right && passed > 0) {
    status = multinode::exit_right;
    said = fmt::format("ok: {} passed, {} not applicable, in {:.1f} s", passed, absent, outcome.seconds.count());
  } else {
    status = multinode::exit_untestable;
    said = fmt::format("could not test: the look ended with status {}: {}", outcome.exit_status, last_line(log.text()));
  }
  std::cout << "image-check: " << host << ": " << multinode::one_line(said) << std::endl;
  if (!json_file.empty()) write_whole(json_file, json.text());
  return status;
}

}  // namespace image_check
