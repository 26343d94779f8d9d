// The CUDA runtime on the CPU: EMULATED_GPUS devices in host memory, with one thread per stream. See README.md.
#include "runtime.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace emulated_gpu {

thread_local int current_device = 0;
thread_local bool in_host_function = false;
thread_local void* launch_site = nullptr;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::pair<cudaError_t, std::string> explained{cudaSuccess, ""};

namespace {

std::optional<int> whole_number(const std::string& text, int most) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int value = std::stoi(text);
  return value <= most ? std::optional(value) : std::nullopt;
}

struct Faults {
  std::mutex mutex;
  std::map<int, CudaError> of_device;
  std::map<int, CudaError> once, at_wait;  // for the next call, and for require_success_of_all()
  std::atomic<int> count{0};
  std::atomic<bool> reported{false};
  std::map<std::string, std::pair<cudaError_t, Frames>> unseen;
};
Faults& faults() { return emulated_gpu::the<Faults>(); }

// Throws the device's error of this kind, once.
void throw_late(std::map<int, CudaError> Faults::*kind) {
  const Lock lock(faults().mutex);
  const auto late = (faults().*kind).extract(current_device);
  if (!late) return;
  if (kind == &Faults::once || faults().once.erase(current_device)) --faults().count;
  throw CudaError(late.mapped());
}

}  // namespace

Machine::Machine() {
  const char* const count = std::getenv("EMULATED_GPUS");
  const std::optional<int> number = count ? whole_number(count, 64) : 0;
  if (!number) {
    say(fmt::format("EMULATED_GPUS must be a number of devices from 0 to 64, not '{}'", count));
    return;
  }
  const std::string fault = std::getenv("EMULATED_GPU_FAULT") ? std::getenv("EMULATED_GPU_FAULT") : "";
  if (fault.starts_with("device:")) {
    why_none = static_cast<cudaError_t>(std::stoi(fault.substr(7)));
    return;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) {
    for (int i = 0; i < *number; ++i) devices.push_back(i);
  } else {  // like CUDA, up to the first invalid or repeated word
    std::istringstream words(visible);
    for (std::string word; std::getline(words, word, ',');) {
      if (word.starts_with("GPU-")) say("CUDA_VISIBLE_DEVICES=" + word + ": emulated GPUs are selected by number only");
      const std::optional<int> device = whole_number(word, *number - 1);
      if (!device || std::ranges::count(devices, *device)) break;
      devices.push_back(*device);
    }
  }
  if (!devices.empty()) description = std::to_string(devices.size()) + " emulated GPUs: on the CPU, for correctness";
}

void refuse_function(const std::string& why) {  // of one that is not emulated; programs look at the last error, too
  say(why);
  guarded("emulated-gpu", [&] { refuse(cudaErrorNotSupported, why); });
}

void require_device(int device) {
  if (device < 0 || device >= device_count())
    refuse(cudaErrorInvalidDevice, fmt::format("no device {}: there are {}", device, device_count()));
}

bool checks() {
  static const char* const text = std::getenv("EMULATED_GPU_CHECK");
  static const bool wanted = text && std::string_view(text) == "1";
  return wanted;
}

unsigned seed() {
  const char* text = std::getenv("EMULATED_GPU_SEED");
  return static_cast<unsigned>(text ? whole_number(text, 999999).value_or(1) : 1);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

void say(const std::string& line) {
  const std::string text = "emulated-gpu: " + line + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // stderr is closed
}

Frames frames() {
  Frames all(32);
  all.resize(static_cast<std::size_t>(backtrace(all.data(), 32)));
  if (void* const site = std::exchange(launch_site, nullptr)) all.insert(all.begin(), site);
  return all;
}
std::string place_of(const Frames& frames) {
  std::string command = fmt::format("addr2line -ie /proc/{}/exe", getpid());
  for (void* const frame : frames) {
    Dl_info info;
    link_map* object = nullptr;
    if (dladdr1(frame, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) && !*object->l_name)
      command += fmt::format(" {:#x}", reinterpret_cast<std::uintptr_t>(frame) - object->l_addr - 1);
  }
  command += R"( 2>/dev/null </dev/null | sed -n '/cuda_runtime[.]h/d; s/^\([^?].*:[0-9]*[0-9]\).*/ (\1)/p')";
  char line[1024] = "";
  FILE* const out = popen(command.c_str(), "r");
  if (out && !std::fgets(line, sizeof line, out)) line[0] = 0;
  if (out) pclose(out);
  return {line, std::strcspn(line, "\n")};
}

std::chrono::seconds deadline() {
  static const int seconds = [] {
    const char* text = std::getenv("EMULATED_GPU_DEADLINE");
    const std::optional<int> value = text ? whole_number(text, 999999) : 10;
    if (!value)
      say("EMULATED_GPU_DEADLINE must be seconds from 0 to 999999, not '" + std::string(text) + "'; using 10");
    return value.value_or(10);
  }();
  return std::chrono::seconds(seconds);
}

void report(const std::string& line) {
  faults().reported = true;
  say(line);
}
void report_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  const Lock lock(mutex);
  const std::size_t where = std::max(text.rfind(": "), text.rfind(" (") + 1);  // npos + 1 is 0
  if (reported.insert(text.substr(0, text.find(", block")) + text.substr(where)).second) report(text);
}
void unseen(cudaError_t code, const std::string& what) {
  const Lock lock(faults().mutex);
  faults().unseen[what] = {code, frames()};
}
void seen(cudaError_t code) {
  const Lock lock(faults().mutex);
  std::erase_if(faults().unseen, [=](const auto& one) { return one.second.first == code; });
}
void set_sticky_error(int device, cudaError_t code, const std::string& why) {
  const Lock lock(faults().mutex);
  if (faults().of_device.try_emplace(device, CudaError{code, why, true}).second) ++faults().count;
}
void set_error_once(int device, cudaError_t code, const std::string& why) {
  const Lock lock(faults().mutex);
  faults().at_wait.insert_or_assign(device, CudaError{code, why, true});
  if (faults().once.insert_or_assign(device, CudaError{code, why, true}).second) ++faults().count;
}
bool failed(int device) {
  if (faults().count == 0) return false;
  const Lock lock(faults().mutex);
  return faults().of_device.count(device) > 0;
}
void require_no_fault() {
  if (!failed(current_device)) return;
  const Lock lock(faults().mutex);
  throw CudaError(faults().of_device.at(current_device));
}
void require_success() {
  require_no_fault();
  if (faults().count > 0) throw_late(&Faults::once);
}

void require_success_of_all() { throw_late(&Faults::at_wait); }

cudaError_t enqueue(cudaStream_t stream, std::function<Task()> make) {
  return guarded("NCCL", [&] { put(stream, make); });
}

cudaStream_t find_stream(cudaStream_t stream, int device) {
  const Lock lock(the<Machine>().mutex);
  return find(stream, device);
}
int device_of(cudaStream_t found) { return found->device; }

int physical_device(int device) { return the<Machine>().devices.at(static_cast<std::size_t>(device)); }

}  // namespace emulated_gpu

namespace {

using namespace emulated_gpu;

// With --check, what the program leaked, and the errors that it did not look at.
void report_the_rest() {
  the<Machine>().ended = checks();
  for (int device = 0; checks() && device < device_count(); ++device) wait_for_device(device, std::chrono::seconds(1));
  for (const auto& [what, why] : std::exchange(faults().unseen, {}))
    report(fmt::format("{}: {}; the program did not look at this error{}", what, cudaGetErrorName(why.first),
                       place_of(why.second)));
  if (!checks() || faults().count > 0) return;  // after a fault no buffer can be freed
  Machine& machine = the<Machine>();
  const Lock lock(machine.mutex);
  std::string left;
  const auto add = [&](std::size_t count, const std::string& what) {
    if (count) left += (left.empty() ? "" : ", ") + std::to_string(count) + " " + what + (count > 1 ? "s" : "");
  };
  add(static_cast<std::size_t>(std::ranges::count_if(
          machine.memory, [](const auto& one) { return one.second.kind < Allocation::registered; })),
      "buffer");
  add(static_cast<std::size_t>(std::ranges::count(machine.streams, false, &CUstream_st::is_default)), "stream");
  add(machine.events.size(), "event");
  add(machine.graphs.size(), "graph");
  add(machine.executables.size(), "executable graph");
  std::set<Frames> calls;
  std::set<std::string> places;
  for (const auto& [address, one] : machine.memory) calls.insert(one.by);
  for (const Frames& call : calls) places.insert(place_of(call));
  for (const std::string& place : places) left += place;
  if (!left.empty()) report("leaked at exit: " + left);
}

// Replaces the exit status. on_exit() gets the one that the program ends with.
struct AtExit {
  AtExit() {
    on_exit(
        [](int status, void*) {
          report_the_rest();
          const char* const wanted = std::getenv("EMULATED_GPU_ERROR_EXITCODE");
          if (status != 0 || !wanted || !faults().reported) return;
          std::fflush(nullptr);
          _exit(whole_number(wanted, 255).value_or(1));
        },
        nullptr);
  }
} at_exit;

}  // namespace

extern "C" const char* emulated_gpu_description() {
  const std::string& text = the<Machine>().description;
  return text.empty() ? nullptr : text.c_str();
}
