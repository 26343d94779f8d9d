// image-check: does this image of a cluster work, is it right, is it as fast as it was?
// Exit status: 0 right, 1 something failed, 2 bad command line, 3 could not test.
#include "commands.hpp"
#include "report.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/program_options.hpp>

#include <fmt/core.h>

#include <array>
#include <iomanip>
#include <iostream>

namespace {
using namespace image_check;
namespace po = boost::program_options;
using multinode::UsageError;

// Removes the folders in front of the options from argv, and returns them.
std::vector<std::string> folders(int& argc, char**& argv) {
  std::vector<std::string> found;
  while (argc > 1 && argv[1][0] != '-') {
    found.push_back(argv[1]);
    argv[1] = argv[0];
    --argc, ++argv;
  }
  return found;
}

// Writes the reports, and says the verdict also where they cannot be written. Returns the exit status.
int finish(const std::filesystem::path& folder, const Results& results) {
  const auto& summary = results.summary;
  int status = summary.exit_status;
  std::string report = (folder / "report.html").string();
  try {
    write_reports(folder, results);
  } catch (const UsageError& error) {
    multinode::say("image-check", std::string("no report: ") + error.what());
    if (status == multinode::exit_right) status = multinode::exit_untestable;
    report = "no report";
  }
  std::cout << fmt::format("{}: {} passed, {} failed, {} flaky, {} skipped, {} not run; {}\n", verdict(results).word,
                           summary.passed, summary.failed, summary.flaky, summary.skipped, summary.not_run, report);
  return status;
}

int run(int argc, char** argv, const std::string& command) {
  const int launches = argv[0] == std::string("baseline") ? 4 : 1;
  RunOptions options;
  options.command = command;
  options.launches = launches;
  auto known = options.description();
  if (launches > 1)
    known.add_options()("launches", po::value(&options.launches)->default_value(launches), "of each check");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  multinode::require_range("launches", options.launches, 1, 1000);
  return finish(options.folder, run_checks(options, std::cout));
}

int compare(int argc, char** argv, const std::string& command) {
  const auto given = folders(argc, argv);
  CompareOptions options;
  options.command = command;
  if (!multinode::parse_command_line(argc, argv, options.description(), true)) return multinode::exit_right;
  if (given.size() != 2) throw UsageError("compare: name two folders, A and B");
  multinode::require_range("loss", options.loss, 1.0, 99.0);
  options.a = given[0];
  options.b = given[1];
  const Results results = image_check::compare(options, std::cout);
  return finish(options.folder, results);
}

int report(int argc, char** argv, const std::string&) {
  const auto given = folders(argc, argv);
  po::options_description known("report FOLDER");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  if (given.size() != 1) throw UsageError("report: name the folder with the results.jsonl of a run");
  write_reports(given[0], read_results(given[0]));
  std::cout << (std::filesystem::path(given[0]) / "report.html").string() << "\n";
  return multinode::exit_right;
}

int list(int argc, char** argv, const std::string&) {
  std::string site;
  po::options_description known("list");
  known.add_options()("site", po::value(&site)->value_name("FILE"), "with the checks of that site file");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  for (const auto& check : read_site(site).checks)
    std::cout << name_of(check.from) << "  " << check.name << ": " << check.title << "\n";
  return multinode::exit_right;
}

int write_site(int argc, char** argv, const std::string&) {
  std::vector<std::string> from;
  po::options_description known("site: prints a site file for nodes like those of these runs");
  known.add_options()("from", po::value(&from)->value_name("DIR")->multitoken()->required(),
                      "folders of runs on good nodes, or of several such folders");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  std::vector<Results> sessions;
  for (const auto& folder : from)
    for (const auto& session : sessions_in(folder)) sessions.push_back(read_results(session));
  std::cout << site_file(sessions);
  return multinode::exit_right;
}

struct Subcommand {
  const char* name;
  const char* what;                                               // nullptr: not in the list of commands
  int (*run)(int argc, char** argv, const std::string& command);  // argv[0] is the command's name
};
constexpr std::array commands{
    Subcommand{"run", "is this image right? Suites of 1, 5 and 30 minutes", run},
    Subcommand{"baseline", "how fast is it, and how much does that vary? Four launches of each check", run},
    Subcommand{"compare", "A B: is B as good as the baseline A? What differs?", compare},
    Subcommand{"node", "is this node fit for a job? One line, for a scheduler's prolog or health check", check_node},
    Subcommand{"paths", "how fast is each pair of nodes? A matrix, with slow nodes and pairs named", paths},
    Subcommand{"self-test", "are planted faults caught?", self_test},
    Subcommand{"report", "DIR: report.html, junit.xml and metrics.prom of results, once more", report},
    Subcommand{"site", "--from DIR: a site file, with the inventory and the limits of good nodes", write_site},
    Subcommand{"list", "all checks", list},
    Subcommand{"plant", nullptr, plant},
    Subcommand{"look", nullptr, look},
};

int usage(std::ostream& out, int status) {
  out << "usage: image-check COMMAND [OPTION...]; --help behind a command shows its options\n";
  for (const auto& command : commands)
    if (command.what) out << "  " << std::left << std::setw(11) << command.name << command.what << '\n';
  out << "Exit status: 0 right, 1 something failed, 2 bad command line, 3 could not test.\n";
  return status;
}

int command_of(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "-h" || name == "--help") return usage(std::cout, multinode::exit_right);
  if (name == "--version") {
    multinode::parse_command_line(argc, argv, {}, true);
    return multinode::exit_right;
  }
  Command whole(argv, argv + argc);
  whole.front() = "image-check";
  for (const auto& command : commands)
    if (name == command.name) return command.run(argc - 1, argv + 1, shell_words({}, whole));
  std::cerr << "image-check: " << (name.empty() ? "no command" : "unknown command '" + name + "'") << '\n';
  return usage(std::cerr, multinode::exit_usage);
}

}  // namespace

int main(int argc, char** argv) {
  const multinode::CleanOutput output(std::cout), errors(std::cerr);
  try {
    return multinode::flush_output("image-check", command_of(argc, argv));
  } catch (const UsageError& error) {
    multinode::say("image-check", error.what());
    return multinode::exit_usage;
  } catch (const std::exception& error) {
    multinode::say("image-check", error.what());
    return multinode::exit_untestable;
  }
}
