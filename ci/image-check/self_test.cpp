#include "self_test.hpp"

#include "compare.hpp"
#include "run.hpp"
#include "statistics.hpp"

#include <multinode/check.hpp>
#include <multinode/launch.hpp>
#include <multinode/options.hpp>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <system_error>
#include <thread>

namespace image_check {
namespace {

using multinode::UsageError;

struct Fault {
  std::string name;
  std::string check;       // that has to catch it; {backend} is mpi, or gloo where there is no MPI
  std::string detector;    // that has to say so
  std::string named;       // regular expression that the finding must match
  bool wrapped = true;     // plant() does it
  Variables variables{};   // else these
  double limit = 30;       // seconds for the check
  bool compared = false;   // to be found by comparing with runs without it
  std::string usual{};     // what plant() does in those
  std::string launcher{};  // only under this one
};

constexpr auto gpu_without_driver = "a GPU without a driver";

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> faults{
      {.name = "a corrupted element",
       .check = "all_reduce, {backend}",
       .detector = "exit status",
       .named = "rank 1: .*element"},
      {.name = "a killed rank", .check = "all_reduce, {backend}", .detector = "exit status", .named = "rank 1 "},
      {.name = "a frozen rank",
       .check = "all_reduce, {backend}",
       .detector = "exit status",
       .named = "rank 1 ",
       .limit = 9},
      {.name = "a hang",
       .check = "messages, gloo",
       .detector = "deadline",
       .named = "did not end by itself",
       .limit = 3},
      {.name = "a process left behind",
       .check = "messages, mpi",
       .detector = "left over",
       .named = "stayed behind",
       .launcher = "mpirun"},  // others end such processes themselves
      {.name = "a slowed rank", .check = "pi, bit for bit", .detector = "slow rank", .named = "rank 1 on .* slower"},
      {.name = "a wrong version",
       .check = "wiring",
       .detector = "exit status",
       .named = "not equal: program: .*rank 1 "},
      {.name = "a wrong answer", .check = "pi, bit for bit", .detector = "answer", .named = "blocks_hash is"},
      {.name = "a forced transport",
       .check = "transport",
       .detector = "transport",
       .named = "MPI sends over tcp between processes of",
       .wrapped = false,
       .variables = {{"OMPI_MCA_btl", "tcp,self"}, {"OMPI_MCA_pml", "ob1"}}},
      {.name = "a limited link",
       .check = "sendrecv, mpi",
       .detector = "speed",
       .named = "sendrecv bus bandwidth, mpi, 1 MiB.* worse",
       .wrapped = false,
       .variables = {{"OMPI_MCA_btl", "tcp,self"},
                     {"OMPI_MCA_pml", "ob1"},
                     {"OMPI_MCA_btl_tcp_sndbuf", "65536"},
                     {"OMPI_MCA_btl_tcp_rcvbuf", "65536"}},
       .compared = true},
      {.name = "a missing device",
       .check = "node",
       .detector = "devices",
       .named = "rdma_ports is .*, and was 'stand_in_0/1 ACTIVE",
       .wrapped = false,
       .compared = true,
       .usual = "a stand-in of a device"},
      {.name = gpu_without_driver,
       .check = "node",
       .detector = "exit status",
       .named = "GPU 0000:17:00.0 has no driver"},
  };
  return faults;
}

constexpr auto stand_in_folder = "IMAGE_CHECK_STAND_IN_SYSFS";

std::string self() { return std::filesystem::read_symlink("/proc/self/exe"); }

RunOptions run_of(const Fault& fault, const SelfTestOptions& options, const Cluster& cluster, bool planted) {
  RunOptions run;
  run.cluster = options.cluster;
  run.suite = Suite::deep;
  auto check = fault.check;
  if (const auto place = check.find("{backend}"); place != std::string::npos)
    check.replace(place, 9, cluster.launcher == "mnrun" ? "gloo" : "mpi");
  run.only = {check};
  run.retry = false;
  run.command = "image-check self-test --only '" + fault.name + "'";
  if (!options.disable.empty()) run.disabled = {options.disable};
  if (!planted && !fault.usual.empty()) {
    run.wrapper = {self(), "plant", fault.usual};
    const auto sysfs = std::filesystem::absolute(options.folder / "sysfs"),
               port = sysfs / "class/infiniband/stand_in_0/ports/1";
    std::filesystem::create_directories(port);
    std::error_code there;
    std::filesystem::create_directory_symlink("/sys/bus", sysfs / "bus", there);
    std::ofstream(port / "state") << "4: ACTIVE\n";
    std::ofstream(port / "rate") << "400 Gb/sec (4X NDR)\n";
    run.variables[stand_in_folder] = sysfs;
  }
  if (planted) {
    run.limit = fault.limit;
    if (fault.wrapped) run.wrapper = {self(), "plant", fault.name};
    run.variables = fault.variables;
    if (fault.name == gpu_without_driver) {
      const auto sysfs = std::filesystem::absolute(options.folder / "sysfs-gpu"),
                 gpu = sysfs / "bus/pci/devices/0000:17:00.0";
      std::filesystem::create_directories(gpu);
      std::ofstream(gpu / "class") << "0x030200\n";
      std::ofstream(gpu / "vendor") << "0x10de\n";
      run.variables[stand_in_folder] = sysfs;
    }
  }
  return run;
}

// What was found, when the fault was planted.
std::vector<Finding> findings_of(const Results& results) {
  std::vector<Finding> all;
  for (const auto& check : results.checks) all.insert(all.end(), check.findings.begin(), check.findings.end());
  return all;
}

// Of this process, once it is the program: another one does it, and ends with it.
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

void plant(const std::string& fault, const std::vector<std::string>& given) {
  auto program = given;
  std::string file = program.front();
  const auto launch = multinode::read_launch(multinode::current_environment());
  if (fault == "a hang") {
    std::signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  } else if (fault == "a wrong answer") {
    std::replace(program.begin(), program.end(), std::string("2e8"), std::string("2e7"));
  } else if (fault == "a stand-in of a device" || fault == gpu_without_driver) {
    const char* folder = std::getenv(stand_in_folder);
    program.insert(program.end(), {"--sysfs", folder ? folder : ""});
  } else if (fault == "a corrupted element") {
    program.insert(program.end(), {"--corrupt", "1"});
  } else if (launch.rank.value != 1) {
    // the others are as they should be
  } else if (fault == "a killed rank") {
    from_outside([](pid_t rank) { sleep_ms(700), kill(rank, SIGKILL); });
  } else if (fault == "a frozen rank") {
    from_outside([](pid_t rank) { sleep_ms(700), kill(rank, SIGSTOP), pause(); });
  } else if (fault == "a slowed rank") {
    from_outside([](pid_t rank) {
      for (;;) kill(rank, SIGSTOP), sleep_ms(90), kill(rank, SIGCONT), sleep_ms(10);
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

int self_test(const SelfTestOptions& options, std::ostream& out) {
  const auto names = faults();
  for (const auto& name : options.only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw UsageError("--only: no fault '" + name + "'; self-test --help lists them");
  if (!options.disable.empty() && std::none_of(all_faults().begin(), all_faults().end(),
                                               [&](const auto& fault) { return fault.detector == options.disable; }))
    throw UsageError("--disable: no fault is caught by a detector '" + options.disable +
                     "'; self-test says in brackets which one caught a fault");
  const Cluster cluster = find_cluster(options.cluster);
  int caught = 0, missed = 0, impossible = 0;
  for (const auto& fault : all_faults()) {
    if (!options.only.empty() && std::find(options.only.begin(), options.only.end(), fault.name) == options.only.end())
      continue;
    auto name = fault.name;
    std::replace(name.begin(), name.end(), ' ', '-');
    const auto folder = options.folder / name;
    std::ostringstream quiet;
    auto run = run_of(fault, options, cluster, true);
    run.folder = folder;
    if (!fault.launcher.empty() && fault.launcher != cluster.launcher) {
      out << "NOT PLANTED  " << fault.name << ": " << cluster.launcher << " ends such processes itself\n" << std::flush;
      ++impossible;
      continue;
    }
    std::filesystem::create_directories(folder);
    Results results;
    if (fault.compared) {
      auto usual = run_of(fault, options, cluster, false);
      usual.launches = least_launches;
      usual.folder = folder / "without";
      const auto baseline = run_checks(usual, quiet);
      run.folder = folder / "with";
      const auto one = run_checks(run, quiet);
      CompareOptions comparing;
      comparing.a = usual.folder;
      comparing.b = run.folder;
      comparing.folder = folder;
      comparing.command = run.command;
      comparing.disabled = run.disabled;
      comparing.again = [&run](const std::filesystem::path& where) {
        auto again = run;
        again.folder = where;
        std::ostringstream ignored;
        run_checks(again, ignored);
      };
      const bool skipped = baseline.summary.passed == 0 || one.summary.passed == 0;
      results = skipped ? one : compare(comparing, quiet);
    } else {
      results = run_checks(run, quiet);
    }
    std::ofstream(folder / "self-test.log") << quiet.str();

    const auto findings = findings_of(results);
    const bool skipped = std::all_of(results.checks.begin(), results.checks.end(),
                                     [](const auto& check) { return check.status == Status::skip; });
    const auto by_another = std::find_if(findings.begin(), findings.end(),
                                         [&](const auto& finding) { return finding.detector != fault.detector; });
    const auto named = std::find_if(findings.begin(), findings.end(), [&](const auto& finding) {
      return finding.detector == fault.detector && std::regex_search(finding.text, std::regex(fault.named));
    });
    if (skipped) {
      ++impossible;
      out << "NOT PLANTED  " << fault.name << ": " << (results.checks.empty() ? "" : results.checks.front().reason)
          << "\n";
    } else if (named != findings.end() && by_another == findings.end()) {
      ++caught;
      std::istringstream lines(named->text);
      std::string telling;
      while (std::getline(lines, telling) && !std::regex_search(telling, std::regex(fault.named))) {
      }
      out << "caught       " << fault.name << " (" << fault.detector << "): " << telling << "\n";
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
  return missed > 0 ? multinode::exit_wrong : impossible > 0 || caught == 0 ? 3 : multinode::exit_right;
}

}  // namespace image_check
