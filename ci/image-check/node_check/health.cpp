#include "health.hpp"

#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/node/nvml.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

namespace node_check {

namespace {

using multinode::names_in;
using multinode::read_number;
using multinode::read_text;
using nlohmann::json;

// "16.0 GT/s PCIe"
double number_before(const std::optional<std::string>& text) { return text ? std::atof(text->c_str()) : 0; }

// By how much a counter may grow between two looks; 0 for most.
double tolerated_growth(const std::string& counter) {
  const auto name = counter.substr(counter.rfind(' ') + 1);
  static const std::map<std::string, double> some{
      {"symbol_error", 100}, {"port_rcv_errors", 10}, {"rx_errors", 100},          {"tx_errors", 100},
      {"rx_crc_errors", 10}, {"ce_count", 100},       {"corrected", 100},          {"core_throttle_count", 1000},
      {"remapped_rows", 2},  {"pcie_replays", 100},   {"port_xmit_discards", 1000}};
  const auto at = some.find(name);
  return at == some.end() ? 0 : at->second;
}

}  // namespace

Counters error_counters(const std::filesystem::path& sysfs) {
  Counters counters;
  const auto read = [&](const std::filesystem::path& folder, const std::string& of,
                        std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (const auto value = read_number<double>(folder / name)) counters[of + " " + name] += *value;
  };
  const auto net = sysfs / "class/net", memory = sysfs / "devices/system/edac/mc", pci = sysfs / "bus/pci/devices",
             cpus = sysfs / "devices/system/cpu";
  for (const auto& port : multinode::rdma_ports(sysfs))
    for (const auto& count :
         multinode::trouble_counts(port.folder, {multinode::Trouble::link, multinode::Trouble::error}))
      counters[port.name() + " " + count.name] = static_cast<double>(count.value);
  for (const auto& name : names_in(net))
    if (multinode::is_there(net / name / "device")) {
      read(net / name / "statistics", name, {"rx_errors", "tx_errors", "rx_crc_errors"});
      read(net / name, name, {"carrier_down_count"});
    }
  for (const auto& name : names_in(memory)) read(memory / name, "memory " + name, {"ce_count", "ue_count"});
  for (const auto& address : names_in(pci))
    for (const char* kind : {"aer_dev_fatal", "aer_dev_nonfatal"}) {
      const std::string text = read_text(pci / address / kind).value_or("");  // its last line: TOTAL_ERR_FATAL 0
      if (const auto space = text.rfind(' '); space != std::string::npos)
        counters["PCIe " + address + " " + kind] = std::atof(text.c_str() + space);
    }
  for (const auto& cpu : names_in(cpus)) read(cpus / cpu / "thermal_throttle", "CPUs", {"core_throttle_count"});
  return counters;
}

Finding judge_counters(const LastLook& now, const std::optional<LastLook>& before) {
  Finding finding{"error_counters", now.counters.size(), "counters", "equal", true, ""};
  if (now.counters.empty()) return absent("error_counters", "no device here counts errors");
  for (const auto& [name, value] : now.counters) {
    const auto of_before = before ? before->counters.find(name) : now.counters.end();
    const bool goes_on =
        before && before->boot == now.boot && of_before != before->counters.end() && of_before->second <= value;
    // What can never be right needs no earlier look, and no later one forgets it.
    const bool fatal = name.ends_with(" ue_count") || name.ends_with(" uncorrected");
    const double growth = goes_on && !fatal ? value - of_before->second : value;
    if ((before || fatal) && growth > tolerated_growth(name)) {
      finding.ok = false;
      add(finding.why, fmt::format("{} grew by {:.0f}", name, growth));
    }
  }
  if (finding.ok == true && !before) finding.why = "this is the first look; the next one compares";
  if (finding.ok == false)
    finding.why += ": look at the cable, the port or the memory that this names (mlxlink, ethtool -S, ras-mc-ctl)";
  return finding;
}

Finding look_at_links(const std::filesystem::path& sysfs) {
  int looked = 0;
  std::string wrong;
  for (const multinode::PciDevice& pci : multinode::pci_devices(sysfs)) {
    const auto& device = pci.folder;
    if (!pci.is_display() && !pci.is_network() && pci.kind != "0x0108") continue;  // an NVMe disk
    std::error_code error;
    const auto slot = std::filesystem::canonical(device, error).parent_path();
    const auto compare = [&](const char* what, const char* unit) {
      const double current = number_before(read_text(device / (std::string("current_link_") + what)));
      double most = number_before(read_text(device / (std::string("max_link_") + what)));
      const double of_slot = number_before(read_text(slot / (std::string("max_link_") + what)));
      if (of_slot > 0) most = std::min(most, of_slot);
      if (current <= 0 || most <= 0) return;  // virtual machines do not know
      ++looked;
      if (current < most)
        add(wrong, fmt::format("{} has PCIe {} {:g}{} of {:g}", pci.address, what, current, unit, most));
    };
    compare("width", " lanes");
    if (!pci.is_display()) compare("speed", " GT/s");
  }
  if (looked == 0) return absent("pcie_links", "no device here says how wide its PCIe link is");
  if (!wrong.empty()) wrong += ": reseat the card or its riser, and look at the slot and the BIOS";
  return {"pcie_links", looked, "values", "equal", wrong.empty(), wrong};
}

Finding look_at_nics(const std::filesystem::path& sysfs) {
  std::vector<std::string> texts;
  const auto net = sysfs / "class/net", rdma = sysfs / "class/infiniband";
  for (const auto& name : names_in(net)) {
    if (!multinode::is_there(net / name / "device")) continue;
    const auto speed = read_number<int>(net / name / "speed");
    texts.push_back(name + " " + read_text(net / name / "operstate").value_or("unknown") +
                    (speed && *speed > 0 ? " " + std::to_string(*speed) + " Mb/s" : ""));
  }
  for (const auto& name : names_in(rdma))
    texts.push_back(name + " firmware " + read_text(rdma / name / "fw_ver").value_or("unknown"));
  for (const char* file : {"devices/system/cpu/cpu0/microcode/version", "class/dmi/id/bios_version"})
    if (const auto version = read_text(sysfs / file))
      texts.push_back((std::string(file).ends_with("bios_version") ? "BIOS " : "microcode ") + *version);
  if (texts.empty()) return absent("nics", "no physical network interface");
  return {"nics", multinode::join(texts), "", "equal", true, ""};
}

std::vector<std::pair<std::string, std::string>> mounts_in(const std::filesystem::path& file) {
  std::vector<std::pair<std::string, std::string>> mounts;
  std::istringstream lines(read_text(file).value_or(""));
  for (std::string line, device, folder, kind; std::getline(lines, line);) {
    if (!(std::istringstream(line) >> device >> folder >> kind)) continue;
    for (std::size_t at = 0; (at = folder.find('\\', at)) != std::string::npos; ++at)
      folder.replace(at, 4, 1, static_cast<char>(std::strtol(folder.substr(at + 1, 3).c_str(), nullptr, 8)));
    mounts.emplace_back(folder, kind);
  }
  return mounts;
}

Finding look_at_mounts(const std::filesystem::path& mounts, std::chrono::milliseconds timeout) {
  // Of file servers. What a user can mount (FUSE) is no fault of the node.
  static const std::set<std::string> kinds{"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs"};
  std::map<std::string, std::future<int>> answers;  // errno
  for (const auto& [folder, kind] : mounts_in(mounts)) {
    if (!kinds.contains(kind)) continue;
    std::packaged_task<int()> ask([folder = folder] {
      struct statvfs space {};
      return statvfs(folder.c_str(), &space) == 0 ? 0 : errno;
    });
    answers[folder] = ask.get_future();
    std::thread(std::move(ask)).detach();  // a server that is gone may keep it for ever
  }
  if (answers.empty()) return absent("mounts", "no file server is mounted");
  std::string wrong;
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (auto& [folder, answer] : answers)
    if (answer.wait_until(until) != std::future_status::ready)
      add(wrong, folder + " does not answer");
    else if (const int error = answer.get(); error != 0 && error != EACCES)  // a server that refuses us has answered
      add(wrong, folder + " is stale (" + std::strerror(error) + ")");
  if (!wrong.empty()) wrong += ": look at the file server and its network, and mount it again";
  return {"mounts", answers.size(), "mounts", "equal", wrong.empty(), wrong};
}

Finding look_at_kernel_log(const std::filesystem::path& log, double after, double& last) {
  const multinode::Descriptor file(open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) return absent("kernel_log", "cannot read " + log.string() + ": needs root, or kernel.dmesg_restrict=0");
  std::string text;
  std::array<char, 8192> record;  // of /dev/kmsg one message a read
  for (ssize_t got; (got = read(file.get(), record.data(), record.size())) > 0 || (got < 0 && errno == EPIPE);)
    if (got > 0) text.append(record.data(), static_cast<std::size_t>(got));

  // A process can name itself as it likes (15 characters), and the kernel prints that name when it crashes: "NAME[7]:
  // segfault", "NAME: page allocation failure". So a pattern begins where the message does, and has more in it than
  // such a name holds, and messages count only if the kernel wrote them (facility 0). A machine check counts if its
  // status, of which the third bit says so, is of an uncorrected error: corrected ones are counted and tolerated. Xids
  // are those after which NVIDIA's catalog wants a reset or support; 13, 31, 43, 45, 63 and 69, for example, come of
  // wrong programs, or are news.
  static const std::string disk = R"((sd|nvme|vd|xvd|md|mmcblk)\w+)";
  static const std::regex message(R"(^(\d+),(\d+),[^;]*;(.*)$)");
  static const std::regex broken(
      R"(^mce: \[Hardware Error\]: CPU \d+: Machine Check( Exception)?: [0-9a-f]+ Bank \d+: [abef]|)"
      R"(^\[Hardware Error\]: (System Fatal error|Uncorrected, software )|)"  // AMD
      R"(^\{\d+\}\[Hardware Error\]: event severity: (fatal|recoverable)|)"
      R"(^EDAC MC\d+: \d+ UE ([^:\[]+ )?on |^Memory failure: 0x[0-9a-f]+: |)"
      R"(^\S+ [0-9a-f]{4,8}:[0-9a-f:.]{7}: (AER: )?PCIe Bus Error: severity=(Uncorrect|Fatal)|)"
      R"(^([\w.]+( \w+)?: )?(I/O|critical medium|device offline) error, dev )" +
      disk + R"(, sector \d|^Buffer I/O error on dev )" + disk + R"(, |^md/\w+:?\w+: Disk failure on |)" +
      R"(^(EXT4-fs|XFS) \(()" + disk +
      R"(|dm-\d+)\): (Remounting filesystem read-only|I/O error while writing superblock|)" +
      R"([A-Z][^\[]*(\[xfs\][^\[]*)?Shutting down filesystem)|)"
      R"(^(block )?nvme(\d+n\d+| nvme\d+): (controller is down|Disabling device after reset failure|)"
      R"(Device not ready; aborting|I/O [^\[]* timeout, (reset|disable) controller|no available path - failing I/O)|)"
      R"(^mlx5_core \S+: \w+:\d+:\(pid \d+\): (health recovery (flow aborted|failed)|device's health compromised|)"
      R"(High temperature on|Port module event\[error\]: module \d+, Cable error, High Temperature)|)"
      R"(^nvidia-nvswitch\d+: SXid \(PCI:[0-9a-f:.]+\): \d+, Fatal, |^NVRM: [^\[]*fallen off the bus|)"
      R"(^NVRM: Xid \(PCI:[0-9A-Fa-f:.]{7,}\): ((46|48|54|61|62|64|74|79|92|94|95|109|110|119|120|136|140|143|156|)"
      R"(158|167|171|172),|(14[4-9]|150), (pid=.*, )?[\w/]+ +Fatal +XC\d i\d+ Link|154, (?!.* to 0x0 )))");
  std::istringstream lines(text);
  std::string wrong;
  int messages = 0, found = 0;
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 1024) line.resize(1024);  // the kernel's own limit
    if (!std::regex_match(line, match, message)) continue;
    const double number = std::atof(match[2].str().c_str());
    last = std::max(last, number);
    if (number <= after) continue;
    ++messages;
    if (std::atof(match[1].str().c_str()) >= 8) continue;  // not the kernel's
    const std::string said = match[3];
    if (!std::regex_search(said, broken)) continue;
    if (++found <= 3) add(wrong, said);
  }
  if (found > 3) wrong += fmt::format("; and {} more", found - 3);
  if (found > 0) wrong += ": look at dmesg; replace what it names";
  return {"kernel_log", found,      "messages",
          "equal",      found == 0, found ? wrong : std::to_string(messages) + " messages looked at"};
}

Finding look_at_sync(const std::filesystem::path& folder) {
  std::string name = (folder / "node_check-XXXXXX").string();
  const multinode::Descriptor file(mkstemp(name.data()));
  if (!file) return absent("sync_time", folder.string() + " cannot be written");  // look_at_folder() says so
  unlink(name.c_str());
  const std::string block(4096, 'x');
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const bool written = pwrite(file.get(), block.data(), block.size(), 0) == std::ssize(block);
    if (!written && (errno == ENOSPC || errno == EDQUOT)) return absent("sync_time", folder.string() + " is full");
    if (!written || fsync(file.get()) != 0)
      return {"sync_time", nullptr, "ms", "less", false, "cannot write and sync a file in " + folder.string()};
    best = std::min(best, 1000 * multinode::seconds_since(start));
  }
  Finding finding{"sync_time", best, "ms", "less", best < 5000, folder.string()};
  if (best >= 5000) finding.why += " takes seconds to write 4 KiB: look at the disk or the file server";
  return finding;
}

namespace {

using multinode::Nvml;
using Device = Nvml::Device;
constexpr int sm_clock = 1, corrected = 0, uncorrected = 1, since_boot = 0;
constexpr unsigned long long hardware_slowdown = 0x8, software_thermal = 0x20, hardware_thermal = 0x40,
                             power_brake = 0x80;

}  // namespace

Gpus gpus_of_nvml(const std::string& library) {
  Gpus gpus{"NVML"};
  const Nvml nvml(library);
  const unsigned count = nvml.get<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  for (unsigned index = 0; nvml.ready && index < count; ++index)
    if (const auto gpu = nvml.get<Device>("nvmlDeviceGetHandleByIndex_v2", index))  // look_at_nvml() names the others
      gpus.names.push_back(nvml.text("nvmlDeviceGetName", *gpu));
  return gpus;
}

Findings look_at_nvml(const std::string& library, Counters& counters) {
  const Nvml nvml(library);
  if (!nvml.ready) return {absent("gpu_health", "cannot load " + library + ", which comes with NVIDIA's driver")};
  Findings all;
  const unsigned count = nvml.get<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  const std::string driver = nvml.text("nvmlSystemGetDriverVersion");
  for (unsigned index = 0; index < count; ++index) {
    const std::string name = "gpu" + std::to_string(index);
    const auto handle = nvml.get<Device>("nvmlDeviceGetHandleByIndex_v2", index);
    if (!handle) {
      all.push_back(
          faulty(name + "_health",
                 name + " does not answer NVML: it may have fallen off the bus; look at dmesg, and reboot the node"));
      continue;
    }
    const Device gpu = *handle;
    std::string wrong;
    const auto pci = nvml.get<Nvml::PciInfo>("nvmlDeviceGetPciInfo_v3", gpu);
    std::vector<std::string> has{nvml.text("nvmlDeviceGetName", gpu), "driver " + driver,
                                 "VBIOS " + nvml.text("nvmlDeviceGetVbiosVersion", gpu)};
    if (const auto on = nvml.get<int>("nvmlDeviceGetPersistenceMode", gpu))
      has.push_back(std::string("persistence ") + (*on ? "on" : "off"));

    int current = 0, pending = 0;
    if (nvml.call("nvmlDeviceGetEccMode", gpu, &current, &pending) == Nvml::success) {
      has.push_back(std::string("ECC ") + (current ? "on" : "off"));
      if (current != pending)
        add(wrong, std::string("ECC will be ") + (pending ? "on" : "off") + " after a reboot: reboot");
    }
    for (const auto& [kind, what] : {std::pair{corrected, " corrected"}, std::pair{uncorrected, " uncorrected"}})
      if (const auto errors = nvml.get<unsigned long long>("nvmlDeviceGetTotalEccErrors", gpu, kind, since_boot))
        counters[name + " ECC" + what] = static_cast<double>(*errors);
    unsigned correctable = 0, rows = 0, is_pending = 0, failed = 0;
    if (nvml.call("nvmlDeviceGetRemappedRows", gpu, &correctable, &rows, &is_pending, &failed) == Nvml::success) {
      if (failed) add(wrong, "a row of its memory could not be remapped: replace the GPU");
      if (is_pending) add(wrong, "rows of its memory wait to be remapped: reset the GPU or reboot the node");
      counters[name + " remapped_rows"] = rows;
    }

    const auto slowed = nvml.get<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", gpu).value_or(0);
    if (slowed & (hardware_slowdown | software_thermal | hardware_thermal | power_brake)) {
      std::string reasons;
      for (const auto& [bit, reason] :
           {std::pair{hardware_slowdown, "hardware slowdown"}, std::pair{software_thermal, "software thermal limit"},
            std::pair{hardware_thermal, "hardware thermal limit"}, std::pair{power_brake, "power brake"}})
        if (slowed & bit) reasons += (reasons.empty() ? "" : ", ") + std::string(reason);
      add(wrong,
          fmt::format("its clock is throttled ({}; {} of {} MHz, {} degrees C): look at the cooling and the power",
                      reasons, nvml.get<unsigned>("nvmlDeviceGetClockInfo", gpu, sm_clock).value_or(0),
                      nvml.get<unsigned>("nvmlDeviceGetMaxClockInfo", gpu, sm_clock).value_or(0),
                      nvml.get<unsigned>("nvmlDeviceGetTemperature", gpu, 0).value_or(0)));
    }

    const auto power = nvml.get<unsigned>("nvmlDeviceGetEnforcedPowerLimit", gpu),
               usual = nvml.get<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", gpu);  // milliwatts
    if (power && usual && *power < *usual / 2)
      add(wrong,
          fmt::format("its power is limited to {} of {} W: look at nvidia-smi -q -d POWER and the power supplies",
                      *power / 1000, *usual / 1000));
    if (const auto replays = nvml.get<unsigned>("nvmlDeviceGetPcieReplayCounter", gpu))
      counters[name + " pcie_replays"] = *replays;

    const auto width = nvml.get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", gpu),
               most = nvml.get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", gpu);
    if (width && most) {
      has.push_back(fmt::format("PCIe x{}", *width));
      if (*width < *most) add(wrong, fmt::format("its PCIe link has {} of {} lanes: reseat it", *width, *most));
    }
    int links = 0, active = 0;
    for (unsigned link = 0;; ++link, ++links) {
      const auto state = nvml.get<int>("nvmlDeviceGetNvLinkState", gpu, link);
      if (!state) break;
      active += *state;
      for (const auto& [kind, what] : {std::pair{1, " nvlink_recoveries"}, std::pair{3, " nvlink_crc_errors"}})
        if (const auto errors = nvml.get<unsigned long long>("nvmlDeviceGetNvLinkErrorCounter", gpu, link, kind))
          counters[name + what] += static_cast<double>(*errors);
    }
    if (active > 0) has.push_back(fmt::format("{} NVLinks", active));
    if (active > 0 && active < links)
      add(wrong, fmt::format("{} of its {} NVLinks are down: look at nvidia-smi nvlink -s and the fabric manager",
                             links - active, links));
    if (!wrong.empty())
      wrong = "GPU " + std::to_string(index) + (pci ? std::string(" (") + pci->id + "): " : ": ") + wrong;
    all.push_back({name + "_health", multinode::join(has), "", "equal", wrong.empty(), wrong});
  }
  if (count == 0) return {absent("gpu_health", "NVML sees no GPU")};
  return all;
}

Finding judge_dcgm(const std::string& answer) {
  const json parsed = json::parse(answer.substr(std::min(answer.find('{'), answer.size())), nullptr, false);
  if (!parsed.is_object()) return faulty("dcgm", "dcgmi diag did not answer in JSON: " + answer.substr(0, 200));
  std::string wrong;
  int tests = 0;
  // The format changed from version to version: results have a status, and warnings as text, texts or objects.
  const std::function<void(const json&, std::string)> look = [&](const json& part, std::string name) {
    if (part.is_object()) {
      name = part.value("name", name);
      if (part.contains("status") && part.at("status").is_string()) {
        ++tests;
        const auto status = part.at("status").get<std::string>();
        if (status.rfind("Fail", 0) == 0 || status.rfind("fail", 0) == 0) add(wrong, name + ": " + status);
      }
      if (part.contains("warnings") && !part.at("warnings").empty())
        add(wrong, name + ": " + part.at("warnings").dump());
    }
    if (part.is_structured())
      for (const json& one : part) look(one, name);
  };
  look(parsed, "");
  if (tests == 0) add(wrong, "dcgmi diag ran no test");
  return {"dcgm", tests, "results", "equal", wrong.empty(), wrong};
}

Findings look_at_dcgm() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("dcgmi diag -r 1 -j 2>&1", "r"), pclose);
  std::string answer;
  std::array<char, 4096> buffer;
  for (std::size_t got; pipe && (got = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;)
    answer.append(buffer.data(), got);
  if (answer.find("not found") != std::string::npos) return {absent("dcgm", "no dcgmi on the PATH")};
  return {judge_dcgm(answer)};
}

namespace {

// Nothing if there is none, or if the file holds something else: then this look is the first one, and writes it anew.
std::optional<LastLook> last_look(const std::filesystem::path& file) try {
  if (file.empty()) return std::nullopt;
  const json state = json::parse(read_text(file).value_or(""));
  return LastLook{state.at("boot"), state.at("counters"), state.at("kernel_message"), state.value("broken", "")};
} catch (const json::exception&) {
  return std::nullopt;
}

}  // namespace

boost::program_options::options_description HealthOptions::description() {
  namespace po = boost::program_options;
  po::options_description known("What hardware and drivers say");
  known.add_options()  //
      ("state", po::value(&state)->value_name("DIR"),
       "folder for error counters of each node: those that grew since the last look are a failure")  //
      ("nvml", po::value(&nvml)->value_name("LIBRARY")->default_value(nvml)->notifier([](const std::string& name) {
        if (name.find('/') != std::string::npos && !name.starts_with('/'))  // of the folder that we happen to be in
          throw multinode::UsageError("--nvml: '" + name + "' must be a plain name or an absolute path");
      }),
       "NVIDIA's management library")                                                                                 //
      ("kernel-log", po::value(&kernel_log)->value_name("FILE")->default_value(kernel_log), "the kernel's messages")  //
      ("sysfs", po::value(&sysfs)->value_name("DIR")->default_value(sysfs), "folder of PCI and RDMA devices");
  return known;
}

std::string state_file(const std::string& folder, const std::string& host) {
  std::filesystem::create_directories(folder);
  return std::filesystem::path(folder) / (host + ".health.json");
}

Findings look_at_health(const HealthOptions& options) {
  const auto before = last_look(options.state);
  LastLook now{read_text("/proc/sys/kernel/random/boot_id").value_or(""), error_counters(options.sysfs), -1};
  Findings all = look_at_nvml(options.nvml, now.counters);
  all.push_back(judge_counters(now, before));
  all.push_back(look_at_links(options.sysfs));
  all.push_back(look_at_nics(options.sysfs));
  all.push_back(look_at_mounts(std::filesystem::path(options.sysfs).parent_path() / "proc/self/mounts"));
  const bool same_boot = before && before->boot == now.boot;
  Finding log = look_at_kernel_log(options.kernel_log, same_boot ? before->kernel_message : -1, now.kernel_message);
  // It stays broken after the look that saw it, and when the message has left the kernel's buffer.
  if (log.ok == false || (same_boot && !before->broken.empty())) {
    now.broken = same_boot ? before->broken.substr(0, 1000) : "";
    if (log.ok == false) add(now.broken, log.why);
    log.ok = false;
    log.why = now.broken;
    if (!options.state.empty()) log.why += " (remembered until a reboot, or until " + options.state + " is removed)";
  }
  all.push_back(log);
  const char* const given = std::getenv("TMPDIR");
  all.push_back(look_at_sync(given && *given ? given : "/tmp"));
  if (options.state.empty()) return all;
  try {
    multinode::write_whole(options.state, json{{"boot", now.boot},
                                               {"counters", now.counters},
                                               {"kernel_message", now.kernel_message},
                                               {"broken", now.broken}}
                                              .dump(-1, ' ', false, json::error_handler_t::replace));
  } catch (const std::system_error& error) {
    all.push_back(faulty("state", std::string(error.what()) + ", so that the next look cannot compare"));
  }
  return all;
}

}  // namespace node_check
