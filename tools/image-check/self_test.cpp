#include "commands.hpp"

#include "faults_json.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch.hpp>

#include <nlohmann/json.hpp>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <iostream>
#include <regex>
#include <sstream>
#include <system_error>
#include <thread>

namespace image_check {
namespace {

using multinode::UsageError;

using nlohmann::json;

// A row of faults.json.
struct Fault {
  std::string name, check, detector, named, launcher;
  Command words;
  Variables files, variables;                                                           // files: paths and texts
  double limit = 60;                                                                    // seconds for the check
  bool planted() const { return words.empty() && files.empty() && variables.empty(); }  // by plant()
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fault, name, check, detector, named, launcher, words, files, variables, limit)

// With `values` in the places of their texts.
std::vector<Fault> all_faults(const json& values = json::object()) {
  std::vector<Fault> all;
  for (const json& one : json::parse(filled(faults_json, values), nullptr, true, true))
    all.push_back(with_defaults<Fault>(one));
  return all;
}

RunOptions run_of(const Fault& fault, const ClusterOptions& cluster, const std::filesystem::path& folder) {
  RunOptions run;
  run.cluster = cluster;
  run.suite = Suite::deep;
  run.only = {fault.check};
  run.retry = false;
  run.command = "image-check self-test --only '" + fault.name + "'";
  run.limit = fault.limit;
  for (const auto& [name, text] : fault.files) {
    multinode::make_folders((folder / name).parent_path());
    write_whole(folder / name, text + "\n");
  }
  if (fault.files.contains("site.json")) run.site = folder / "site.json";
  if (fault.planted()) run.wrapper = {std::filesystem::read_symlink("/proc/self/exe"), "plant", fault.name};
  run.variables = fault.variables;
  for (const auto& word : fault.words) run.words.push_back(filled(word, {{"folder", folder.string()}}));
  return run;
}

// Starts a process that harms this one, which becomes the program meanwhile, and that ends with it.
void from_outside(const std::function<void(pid_t)>& harm) {
  const pid_t program = getpid();
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == program) harm(program);
  _exit(0);
}

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// A copy of the program with another build id, in memory.
std::string other_build(const std::string& program) {
  std::ifstream file(program, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);  // of the ELF section .note.gnu.build-id
  const auto place = bytes.find(note);
  if (place == std::string::npos) throw UsageError("plant: " + program + " has no build id");
  bytes[place + note.size()] = static_cast<char>(~bytes[place + note.size()]);
  const int memory = memfd_create("other_build", 0);
  if (memory < 0 || write(memory, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    throw std::system_error(errno, std::generic_category(), "plant: cannot copy " + program);
  return "/proc/self/fd/" + std::to_string(memory);
}

}  // namespace

std::vector<std::string> faults() {
  std::vector<std::string> names;
  for (const auto& fault : all_faults()) names.push_back(fault.name);
  return names;
}

int plant(int argc, char** argv, const std::string&) {
  if (argc < 3) throw UsageError("plant: name a fault and a program");
  const std::string fault = argv[1];
  std::vector<std::string> program(argv + 2, argv + argc);
  std::string file = program.front();
  const auto launch = multinode::read_launch(multinode::current_environment());
  if (fault == "a hang") {
    std::signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  } else if (fault == "a wrong answer") {
    std::ranges::replace(program, std::string("2e8"), std::string("2e7"));
  } else if (fault == "a benchmark without results") {
    for (auto word = program.begin(); word != program.end(); ++word)
      if (*word == "--json" && word + 1 != program.end()) word[1] = "/dev/null";
  } else if (launch.rank.value != 1) {
    // the others are as they should be
  } else if (fault == "a killed rank") {
    from_outside([](pid_t rank) { sleep_ms(700), kill(rank, SIGKILL); });
  } else if (fault == "a frozen rank") {
    from_outside([](pid_t rank) { sleep_ms(700), kill(rank, SIGSTOP), pause(); });
  } else if (fault == "a slowed rank") {
    from_outside([](pid_t rank) {
      for (;;) kill(rank, SIGSTOP), sleep_ms(190), kill(rank, SIGCONT), sleep_ms(10);
    });
  } else if (fault == "a process left behind") {
    if (fork() == 0) {
      setsid();
      for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);
      sleep_ms(60'000);
      _exit(0);
    }
  } else if (fault == "a wrong version") {
    file = other_build(file);
  } else {
    throw UsageError("plant: unknown fault '" + fault + "'");
  }
  std::vector<char*> words;
  for (auto& word : program) words.push_back(word.data());
  words.push_back(nullptr);
  execvp(file.c_str(), words.data());
  throw std::system_error(errno, std::generic_category(), "plant: cannot run " + file);
}

int self_test(int argc, char** argv, const std::string&) {
  namespace po = boost::program_options;
  ClusterOptions where;
  std::filesystem::path output = "image-check-self-test";
  std::vector<std::string> only;
  po::options_description known("self-test");
  known.add_options()                                                                      //
      ("only", po::value(&only)->value_name("FAULT"), "only this fault; may be repeated")  //
      ("output,o", po::value(&output)->value_name("DIR")->default_value(output), "folder for what is found");
  known.add(where.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  const auto names = faults();
  for (const auto& name : only)
    if (std::ranges::find(names, name) == names.end())
      throw UsageError("--only: no fault '" + name + "'; there are " + multinode::join(names, ", "));
  auto& out = std::cout;
  const Cluster cluster = find_cluster(where);
  int caught = 0, missed = 0, impossible = 0;
  const json places{{"backend", cluster.launcher == "mnrun" ? "gloo" : "mpi"},
                    {"gpu", "sys/bus/pci/devices/0000:17:00.0"},
                    {"nic", "sys/bus/pci/devices/0000:a1:00.0"},
                    {"port", "sys/class/infiniband/stand_in_0/ports/1"}};
  for (const auto& fault : all_faults(places)) {
    if (!only.empty() && std::ranges::find(only, fault.name) == only.end()) continue;
    auto name = fault.name;
    std::ranges::replace(name, ' ', '-');
    const auto folder = output / name;
    std::ostringstream quiet;
    const auto files = std::filesystem::absolute(folder) / "planted";
    std::filesystem::remove_all(files);
    auto run = run_of(fault, where, files);
    run.folder = folder;
    if (!fault.launcher.empty() && fault.launcher != cluster.launcher) {
      out << "NOT PLANTED  " << fault.name << ": " << cluster.launcher << " ends such processes itself\n" << std::flush;
      ++impossible;
      continue;
    }
    multinode::make_folders(folder);
    const Results results = run_checks(run, quiet);
    write_whole(folder / "self-test.log", quiet.str());

    std::vector<Finding> findings;
    for (const auto& check : results.checks)
      findings.insert(findings.end(), check.findings.begin(), check.findings.end());
    const bool skipped = !results.checks.empty() && std::ranges::all_of(results.checks, [](const auto& check) {
      return check.status == Status::skip;
    });
    const auto by_another =
        std::ranges::find_if(findings, [&](const auto& finding) { return finding.detector != fault.detector; });
    std::smatch telling;  // the line that names it
    const bool named = std::ranges::any_of(findings, [&](const auto& finding) {
      return finding.detector == fault.detector &&
             std::regex_search(finding.text, telling, std::regex(".*" + fault.named + ".*"));
    });
    if (skipped) {
      ++impossible;
      out << "NOT PLANTED  " << fault.name << ": " << results.checks.front().reason << "\n";
    } else if (named && by_another == findings.end()) {
      ++caught;
      out << "caught       " << fault.name << " (" << fault.detector << "): " << telling.str() << "\n";
    } else {
      ++missed;
      out << "MISSED       " << fault.name << ": "
          << (findings.empty() ? "nothing was found"
              : by_another != findings.end()
                  ? "found by '" + by_another->detector + "' instead of '" + fault.detector + "': " + by_another->text
                  : "not named: " + findings.front().text)
          << "; see " << folder.string() << "\n";
    }
    out << std::flush;
  }
  out << caught << " faults caught and named, " << missed << " missed, " << impossible << " could not be planted\n";
  return missed > 0                      ? multinode::exit_wrong
         : impossible > 0 || caught == 0 ? multinode::exit_untestable
                                         : multinode::exit_right;
}

}  // namespace image_check
