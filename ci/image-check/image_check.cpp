// image-check: does this image of a cluster work, is it right, is it as fast as it was?
// Exit status: 0 right, 1 something failed, 2 bad command line, 3 could not test, 77 hardware absent.
#include "report/report.hpp"
#include "run.hpp"

#include <multinode/check.hpp>
#include <multinode/options.hpp>

#include <array>
#include <iostream>
#include <optional>

namespace {
using namespace image_check;

int run(int argc, char** argv) {
  RunDescription run;
  if (!multinode::parse_command_line(argc, argv, run.description(), true)) return multinode::exit_right;
  run.read();
  run.options.command = "image-check";
  for (int i = 0; i < argc; ++i) run.options.command += " " + std::string(argv[i]);
  const Results results = run_checks(run.options, std::cout);
  write_reports(run.options.folder, results, nullptr);
  return results.summary.exit_status;
}

int report(int argc, char** argv) {
  // report FOLDER [OPTION...]: the parser knows options only
  std::string folder, baseline_folder;
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && argv[1][0] != '-') {
    folder = argv[1];
    words.erase(words.begin() + 1);
  }
  boost::program_options::options_description known("image-check report FOLDER [OPTION...]");
  known.add_options()("baseline", boost::program_options::value(&baseline_folder), "folder of results to draw beside");
  if (!multinode::parse_command_line(static_cast<int>(words.size()), words.data(), known, true))
    return multinode::exit_right;
  if (folder.empty()) throw multinode::UsageError("report: name the folder with the results.jsonl of a run");
  const Results results = read_results(folder);
  std::optional<Results> baseline;
  if (!baseline_folder.empty()) baseline = read_results(baseline_folder);
  write_reports(folder, results, baseline ? &*baseline : nullptr);
  std::cout << (std::filesystem::path(folder) / "report.html").string() << '\n';
  return multinode::exit_right;
}

struct Subcommand {
  const char* name;
  const char* what;
  int (*run)(int argc, char** argv);  // argv[0] is the command's name
};
constexpr std::array commands{
    Subcommand{"run", "runs the checks of a suite", run},
    Subcommand{"report", "writes report.html and junit.xml beside the results.jsonl of a run", report},
};

int usage(std::ostream& out, int status) {
  out << "usage: image-check COMMAND [OPTION...]; --help after a command shows its options\n";
  for (const auto& command : commands) out << "  " << command.name << "  " << command.what << '\n';
  return status;
}

int command_of(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "-h" || name == "--help") return usage(std::cout, multinode::exit_right);
  for (const auto& command : commands)
    if (name == command.name) return command.run(argc - 1, argv + 1);
  std::cerr << "image-check: " << (name.empty() ? "no command" : "unknown command '" + name + "'") << '\n';
  return usage(std::cerr, multinode::exit_usage);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return command_of(argc, argv);
  } catch (const multinode::UsageError& error) {
    std::cerr << std::string("image-check: ") + error.what() + "\n";
    return multinode::exit_usage;
  } catch (const std::exception& error) {
    std::cerr << std::string("image-check: ") + error.what() + "\n";
    return 3;
  }
}
