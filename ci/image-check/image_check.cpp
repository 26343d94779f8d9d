// image-check: does this image of a cluster work, is it right, is it as fast as it was?
// Exit status: 0 right, 1 something failed, 2 bad command line, 3 could not test.
#include "compare.hpp"
#include "run.hpp"
#include "statistics.hpp"

#include <multinode/check.hpp>
#include <multinode/options.hpp>

#include <cstdlib>
#include <iostream>

namespace {
using namespace image_check;
namespace po = boost::program_options;
using multinode::UsageError;

constexpr auto usage =
    R"(usage: image-check run [--suite smoke|gate|deep]   is this image right? Budgets of 1, 5 and 30 minutes
       image-check baseline                           how fast it is, and how much that varies: ten launches
       image-check compare A B                        is B as good as the baseline A? What differs?
       image-check noise RUN...                       false alarms among runs of one image
       image-check list                               all checks
Each has --help. Exit status: 0 right, 1 something failed, 2 bad command line, 3 could not test.
)";

// Folders in front of the options.
std::vector<std::string> folders(int& argc, char**& argv) {
  std::vector<std::string> found;
  while (argc > 1 && argv[1][0] != '-') {
    found.push_back(argv[1]);
    argv[1] = argv[0];
    --argc, ++argv;
  }
  return found;
}

int run(int argc, char** argv, const std::string& command, int launches) {
  RunDescription run;
  run.options.command = command;
  run.options.launches = launches;
  auto known = run.description();
  if (launches > 1)
    known.add_options()("launches", po::value(&run.options.launches)->default_value(launches), "of each check");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  multinode::require_range("launches", run.options.launches, 1, 1000);
  run.read();
  return run_checks(run.options, std::cout).summary.exit_status;
}

int compare(int argc, char** argv, const std::string& command) {
  const auto given = folders(argc, argv);
  CompareOptions options;
  options.command = command;
  if (!multinode::parse_command_line(argc, argv, options.description(), true)) return multinode::exit_right;
  if (given.size() != 2) throw UsageError("compare: name two folders, A and B");
  options.a = given[0];
  options.b = given[1];
  const auto results = image_check::compare(options, std::cout);
  const auto& summary = results.summary;
  std::cout << summary.passed << " as they were, " << summary.failed << " worse, different or failed\n";
  return summary.exit_status;
}

int noise(int argc, char** argv) {
  const auto given = folders(argc, argv);
  int pairs = 1000, launches = 10;
  std::uint64_t seed = 1;
  po::options_description known("noise RUN...: folders of runs of one image on one machine");
  known.add_options()                                                                                            //
      ("pairs", po::value(&pairs)->default_value(pairs), "comparisons, each of runs drawn anew")                 //
      ("launches", po::value(&launches)->default_value(launches), "runs that are the baseline of a comparison")  //
      ("seed", po::value(&seed)->default_value(seed), "of the random numbers");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  std::vector<Results> runs;
  for (const auto& folder : given) runs.push_back(read_results(folder));
  const auto found = false_alarms(runs, pairs, launches, seed);
  std::cout << found.pairs << " pairs of " << runs.size() << " runs: " << found.suspects << " with a suspect, "
            << found.alarms << " with a false alarm\n";
  for (const auto& [metric, alarms] : found.by_metric) std::cout << "  " << alarms << "  " << metric << "\n";
  return multinode::exit_right;
}

int list() {
  for (const auto& check : all_checks())
    std::cout << name_of(check.from) << "  " << check.name << ": " << check.title << "\n";
  return multinode::exit_right;
}

int dispatch(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  std::string command = "image-check";
  for (int i = 1; i < argc; ++i) command += " " + std::string(argv[i]);
  if (name == "run") return run(argc - 1, argv + 1, command, 1);
  if (name == "baseline") return run(argc - 1, argv + 1, command, 10);
  if (name == "compare") return compare(argc - 1, argv + 1, command);
  if (name == "noise") return noise(argc - 1, argv + 1);
  if (name == "list") return list();
  if (name == "--help" || name == "-h") {
    std::cout << usage;
    return multinode::exit_right;
  }
  throw UsageError(name.empty() ? "which command? See image-check --help"
                                : "unknown command '" + name + "'; see image-check --help");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return dispatch(argc, argv);
  } catch (const UsageError& error) {
    std::cerr << std::string("image-check: ") + error.what() + "\n";
    return multinode::exit_usage;
  } catch (const std::exception& error) {
    std::cerr << std::string("image-check: ") + error.what() + "\n";
    return 3;
  }
}
