#include "self_test.hpp"

#include "compare.hpp"
#include "run.hpp"
#include "statistics.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/launch.hpp>
#include <multinode/net/address.hpp>

#include <nlohmann/json.hpp>

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

using Files = std::vector<std::pair<std::string, std::string>>;  // paths and texts

struct Fault {
  std::string name;
  std::string check;     // that has to catch it; {backend} is mpi, or gloo where there is no MPI
  std::string detector;  // that has to say so
  std::string named;     // regular expression that the finding must match
  Command words{};       // added to the program; {folder} has the files
  Files files{};
  Variables variables{};
  double limit = 60;       // seconds for the check
  bool compared = false;   // to be found by comparing with runs without it
  bool in_usual = false;   // words and files belong to those
  std::string launcher{};  // only under this one
  bool planted() const { return words.empty() && files.empty() && variables.empty(); }  // by plant()
};

// What is planted into node_check: into copies of what it reads, and the stand-in of NVML. A last look had seen none of
// the counters.
Fault node_fault(std::string name, const std::string& look, std::string detector, std::string named, Files files,
                 const std::string& nvml = "") {
  files.emplace_back("nvml", nvml + "\n");
  files.emplace_back("state/" + multinode::host_name() + ".health.json",
                     R"({"boot": "an earlier one", "counters": {}, "kernel_message": -1})");
  return {std::move(name),
          "node",
          std::move(detector),
          std::move(named),
          {"--only", look, "--sysfs", "{folder}/sys", "--kernel-log", "{folder}/kmsg", "--state", "{folder}/state",
           "--nvml", "{stand-in of NVML}"},
          std::move(files),
          {{"NVML_STAND_IN", "{folder}/nvml"}}};
}
Fault gpu_fault(std::string name, const std::string& fault, std::string named, std::string detector = "gpu_health") {
  return node_fault(std::move(name), "health", std::move(detector), std::move(named), {}, fault);
}
Fault counter_fault(std::string name, const std::string& file, const std::string& value, std::string named) {
  return node_fault(std::move(name), "health", "error_counters", std::move(named), {{file, value}});
}
// The finding has the message.
Fault kernel_fault(std::string name, const std::string& message) {
  const auto quoted = std::regex_replace(message, std::regex(R"([.^$*+?()[\]{}\\|])"), "\\$&");
  return node_fault(std::move(name), "health", "kernel_log", quoted, {{"kmsg", "2,7,1000,-;" + message + "\n"}});
}

const std::vector<Fault>& all_faults() {
  const std::string gpu = "sys/bus/pci/devices/0000:17:00.0/", nic = "sys/bus/pci/devices/0000:a1:00.0/",
                    port = "sys/class/infiniband/stand_in_0/ports/1/", memory = "sys/devices/system/edac/mc/mc0/";
  const Variables tcp{{"OMPI_MCA_btl", "tcp,self"}, {"OMPI_MCA_pml", "ob1"}};
  Variables slow_tcp = tcp;  // which sends in pieces of 1 KiB only
  slow_tcp["OMPI_MCA_btl_tcp_flags"] = "1";
  for (const char* limit : {"eager_limit", "rndv_eager_limit", "max_send_size"})
    slow_tcp[std::string("OMPI_MCA_btl_tcp_") + limit] = "1024";
  static const std::vector<Fault> faults{
      {"a corrupted element", "all_reduce, {backend}", "exit status", "rank 1: .*element", {"--corrupt", "1"}},
      {"a killed rank", "all_reduce, {backend}", "exit status", "rank 1 "},
      {"a frozen rank", "all_reduce, {backend}", "exit status", "rank 1 ", {}, {}, {}, 30},
      {"a hang", "messages, gloo", "deadline", "did not end by itself", {}, {}, {}, 3},
      {.name = "a process left behind",
       .check = "messages, mpi",
       .detector = "left over",
       .named = "stayed behind",
       .launcher = "mpirun"},  // others end such processes themselves
      {"a slowed rank", "pi, bit for bit", "slow rank", "rank 1 on .* slower"},
      {"a wrong version", "wiring", "exit status", "not equal: program: .*rank 1 "},
      {"a wrong answer", "pi, bit for bit", "answer", "blocks_hash is"},
      {"an output without its answer",
       "messages, gloo",
       "output",
       "did not say 'RIGHT: 7",
       {},
       {{"site.json", R"({"checks": [{"name": "messages, gloo", "says": ["RIGHT: 7 of"]}]})"}}},
      {"a benchmark without results", "all_reduce, {backend}", "results", "it measured nothing"},
      {"a metric below the site's threshold",
       "pi, bit for bit",
       "threshold",
       "the site file wants at most",
       {},
       {{"site.json", R"({"kinds": [{"nodes": ".*", "at_most": {"pi, 200 million intervals": 1e-6}}]})"}}},
      {"a forced transport", "transport", "transport", "MPI sends over tcp between processes of", {}, {}, tcp},
      {"a limited link", "sendrecv, mpi", "speed", "sendrecv bus bandwidth, mpi, .* worse", {}, {}, slow_tcp, 60, true},
      {"a missing device",
       "node",
       "devices",
       "rdma_ports is .*, and was 'stand_in_0/1 ACTIVE",
       {"--only", "devices", "--only", "limits", "--sysfs", "{folder}/sys"},
       {{port + "state", "4: ACTIVE\n"}, {port + "rate", "400 Gb/sec (4X NDR)\n"}},
       {},
       60,
       true,
       true},
      node_fault("a GPU without a driver", "devices", "pci_gpus", "GPU 0000:17:00.0 has no driver",
                 {{gpu + "class", "0x030200\n"}, {gpu + "vendor", "0x10de\n"}}),
      node_fault("a network card without a driver", "devices", "pci_nics", "0000:a1:00.0 .* has no driver",
                 {{nic + "class", "0x020000\n"}, {nic + "vendor", "0x15b3\n"}}),
      node_fault("an RDMA port that is down", "devices", "rdma_ports", "no RDMA port is ACTIVE",
                 {{port + "state", "1: DOWN\n"}, {port + "rate", "400 Gb/sec (4X NDR)\n"}}),
      node_fault(
          "a narrow PCIe link", "health", "pcie_links", "0000:a1:00.0 has PCIe width 8 lanes of 16",
          {{nic + "class", "0x020700\n"}, {nic + "current_link_width", "8\n"}, {nic + "max_link_width", "16\n"}}),
      node_fault("a slow PCIe link", "health", "pcie_links", "0000:a1:00.0 has PCIe speed 8 GT/s of 32",
                 {{nic + "class", "0x020700\n"},
                  {nic + "current_link_speed", "8.0 GT/s PCIe\n"},
                  {nic + "max_link_speed", "32.0 GT/s PCIe\n"}}),
      counter_fault("memory errors", memory + "ue_count", "1\n", "memory mc0 ue_count grew by 1"),
      counter_fault("link errors since the last look", port + "counters/link_downed", "5\n",
                    "stand_in_0/1 link_downed grew by 5"),
      counter_fault("packets of RoCE that are broken", port + "hw_counters/rx_icrc_encapsulated", "9\n",
                    "rx_icrc_encapsulated grew by 9"),
      counter_fault("a switch that discards packets", port + "counters/port_rcv_remote_physical_errors", "4\n",
                    "port_rcv_remote_physical_errors grew by 4"),
      counter_fault("a storm of corrected memory errors", memory + "ce_count", "2000\n",
                    "memory mc0 ce_count grew by 2000"),
      counter_fault("a PCIe device with fatal errors", nic + "aer_dev_fatal", "DLP 2\nTOTAL_ERR_FATAL 2\n",
                    "PCIe 0000:a1:00.0 aer_dev_fatal grew by 2"),
      counter_fault("a CPU that is throttled", "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count",
                    "5000\n", "CPUs core_throttle_count grew by 5000"),
      node_fault("a stale mount", "health", "mounts", "/nowhere/scratch is stale",
                 {{"proc/self/mounts", "server:/scratch /nowhere/scratch nfs4 rw 0 0\n"}}),
      node_fault("a narrow link of a disk", "health", "pcie_links", "0000:17:00.0 has PCIe width 2 lanes of 4",
                 {{gpu + "class", "0x010802\n"}, {gpu + "current_link_width", "2\n"}, {gpu + "max_link_width", "4\n"}}),
      kernel_fault("a machine check", "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400"),
      kernel_fault("an Xid of the GPU's driver", "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."),
      kernel_fault("a memory error that was not corrected", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0"),
      kernel_fault("a disk that cannot be read", "critical medium error, dev nvme0n1, sector 5"),
      kernel_fault("an NVMe controller that is down", "nvme nvme0: controller is down; will reset: CSTS=0xffffffff"),
      kernel_fault("a PCIe error that was not corrected",
                   "pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
      kernel_fault("a fatal event of the firmware", "{1}[Hardware Error]: event severity: fatal"),
      kernel_fault("a GPU that its driver lost", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."),
      gpu_fault("rows of a GPU that wait to be remapped", "remap_pending 1", "wait to be remapped: reset the GPU"),
      gpu_fault("a GPU held back by the power brake", "throttled 128", "throttled .power brake"),
      gpu_fault("a GPU that its driver slows for its heat", "throttled 32", "throttled .software thermal limit"),
      gpu_fault("a GPU whose ECC is off after a reboot", "ecc_later 0", "ECC will be off after a reboot"),
      gpu_fault("a GPU with a third of its power", "power 233000", "its power is limited to 233 of 700 W"),
      gpu_fault("NVLink errors of a GPU", "nvlink_errors 7", "gpu1 nvlink_recoveries grew by 7", "error_counters"),
      gpu_fault("PCIe replays of a GPU", "replays 500", "gpu1 pcie_replays grew by 500", "error_counters"),
      gpu_fault("ECC errors of a GPU", "ecc 3", "gpu1 ECC uncorrected grew by 3", "error_counters"),
      gpu_fault("a row that could not be remapped", "remap_failure 1", "could not be remapped: replace the GPU"),
      gpu_fault("a throttled GPU", "throttled 64", "throttled .hardware thermal limit; 345 of 1980 MHz"),
      gpu_fault("a GPU with half its PCIe lanes", "width 8", "GPU 1 .0000:65:00.0.: its PCIe link has 8 of 16 lanes"),
      gpu_fault("an NVLink that is down", "nvlinks 17", "1 of its 18 NVLinks are down"),
      gpu_fault("a GPU that fell off the bus", "lost 1", "gpu1 does not answer NVML"),
      {"a failed diagnosis of DCGM",
       "node",
       "dcgm",
       "PCIe: Fail",
       {"--only", "dcgm"},
       {{"bin/dcgmi",
         "#!/bin/sh\necho '{\"DCGM GPU Diagnostic\": {\"test_categories\": [{\"category\": \"Hardware\", \"tests\": "
         "[{\"name\": \"PCIe\", \"results\": [{\"gpu_id\": \"0\", \"status\": \"Fail\"}]}]}]}}'\n"}},
       {{"PATH", "{folder}/bin:{PATH}"}}},
      {"no space for temporary files",
       "node",
       "tmp_bytes",
       "/proc cannot be written",
       {"--only", "limits", "--tmp", "/proc"}},
  };
  return faults;
}

nlohmann::json places(const Cluster& cluster, const std::filesystem::path& folder, const std::string& stand_in) {
  const char* const path = std::getenv("PATH");
  return {{"backend", cluster.launcher == "mnrun" ? "gloo" : "mpi"},
          {"folder", folder.string()},
          {"PATH", path ? path : ""},
          {"stand-in of NVML", stand_in}};
}

void write_files(const Fault& fault, const std::filesystem::path& folder) {
  for (const auto& [name, text] : fault.files) {
    std::filesystem::create_directories((folder / name).parent_path());
    write_whole(folder / name, text);
    if (text.starts_with("#!")) std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
  }
}

Command all_filled(Command words, const nlohmann::json& values) {
  for (auto& word : words) word = filled(word, values);
  return words;
}
Variables all_filled(Variables variables, const nlohmann::json& values) {
  for (auto& [name, value] : variables) value = filled(value, values);
  return variables;
}

RunOptions run_of(const Fault& fault, const SelfTestOptions& options, const Cluster& cluster, bool planted,
                  const std::filesystem::path& folder) {
  RunOptions run;
  run.cluster = options.cluster;
  run.suite = Suite::deep;
  const auto values = places(cluster, folder, cluster.path_of("image-check/nvml_stand_in.so"));
  run.only = {filled(fault.check, values)};
  run.retry = false;
  run.command = "image-check self-test --only '" + fault.name + "'";
  if (!options.disable.empty()) run.disabled = {options.disable};
  if (planted) run.limit = fault.limit;
  if (planted == fault.in_usual) return run;
  write_files(fault, folder);
  if (!fault.files.empty() && fault.files[0].first == "site.json") run.site = folder / "site.json";
  if (fault.planted()) run.wrapper = {std::filesystem::read_symlink("/proc/self/exe"), "plant", fault.name};
  run.variables = all_filled(fault.variables, values);
  run.words = all_filled(fault.words, values);
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

std::vector<NodeFault> plant_node_faults(const std::filesystem::path& folder, const std::string& stand_in) {
  std::vector<NodeFault> all;
  for (const auto& fault : all_faults()) {
    if (fault.check != "node" || fault.compared) continue;
    const auto own = folder / std::to_string(all.size());
    write_files(fault, own);
    const auto values = places({}, own, stand_in);
    all.push_back({fault.name, fault.named, all_filled(fault.words, values), all_filled(fault.variables, values)});
  }
  return all;
}

void plant(const std::string& fault, const std::vector<std::string>& given) {
  auto program = given;
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

int self_test(const SelfTestOptions& options, std::ostream& out) {
  const auto names = faults();
  for (const auto& name : options.only)
    if (std::ranges::find(names, name) == names.end())
      throw UsageError("--only: no fault '" + name + "'; self-test --help lists them");
  if (!options.disable.empty() &&
      std::ranges::none_of(all_faults(), [&](const auto& fault) { return fault.detector == options.disable; }))
    throw UsageError("--disable: no fault is caught by a detector '" + options.disable +
                     "'; self-test says in brackets which one caught a fault");
  const Cluster cluster = find_cluster(options.cluster);
  int caught = 0, missed = 0, impossible = 0;
  for (const auto& fault : all_faults()) {
    if (!options.only.empty() && std::ranges::find(options.only, fault.name) == options.only.end()) continue;
    auto name = fault.name;
    std::ranges::replace(name, ' ', '-');
    const auto folder = options.folder / name;
    std::ostringstream quiet;
    const auto files = std::filesystem::absolute(folder) / "planted";
    std::filesystem::remove_all(files);
    auto run = run_of(fault, options, cluster, true, files);
    run.folder = folder;
    if (!fault.launcher.empty() && fault.launcher != cluster.launcher) {
      out << "NOT PLANTED  " << fault.name << ": " << cluster.launcher << " ends such processes itself\n" << std::flush;
      ++impossible;
      continue;
    }
    std::filesystem::create_directories(folder);
    Results results;
    if (fault.compared) {
      auto usual = run_of(fault, options, cluster, false, files);
      usual.launches = 8;  // so that the noise of launches is known
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
      comparing.again = [&run, &usual](bool of_a, const std::filesystem::path& where) {
        auto again = of_a ? usual : run;
        again.launches = 1;
        again.folder = where;
        std::ostringstream ignored;
        run_checks(again, ignored);
      };
      const bool skipped = baseline.summary.passed == 0 || one.summary.passed == 0;
      results = skipped ? one : compare(comparing, quiet);
    } else {
      results = run_checks(run, quiet);
    }
    write_whole(folder / "self-test.log", quiet.str());

    std::vector<Finding> findings;
    for (const auto& check : results.checks)
      findings.insert(findings.end(), check.findings.begin(), check.findings.end());
    const bool skipped = !results.checks.empty() && std::ranges::all_of(results.checks, [](const auto& check) {
      return check.status == Status::skip;
    });
    const auto by_another =
        std::ranges::find_if(findings, [&](const auto& finding) { return finding.detector != fault.detector; });
    const auto named = std::ranges::find_if(findings, [&](const auto& finding) {
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
  return missed > 0                      ? multinode::exit_wrong
         : impossible > 0 || caught == 0 ? multinode::exit_untestable
                                         : multinode::exit_right;
}

}  // namespace image_check
