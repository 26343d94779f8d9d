#include "gpu.hpp"

#include <multinode/base/seconds.hpp>
#include <multinode/communicator/device.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>

namespace node_check {

namespace {

std::uint64_t pattern(std::uint64_t index, int round) {
  const std::uint64_t word = (index + 1) * 0x9E37'79B9'7F4A'7C15;  // odd, so no two products are the same
  return round % 2 == 0 ? word : ~word;
}

}  // namespace

void fill(std::span<std::uint64_t> words, std::uint64_t first, int round) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = pattern(first + i, round);
}

Wrong compare(std::span<const std::uint64_t> words, std::uint64_t first, int round) {
  Wrong wrong;
  for (std::size_t i = 0; i < words.size(); ++i) wrong.count += words[i] != pattern(first + i, round);
  if (wrong.count == 0) return wrong;
  std::size_t i = 0;
  while (words[i] == pattern(first + i, round)) ++i;
  return {wrong.count, first + i, pattern(first + i, round), words[i]};
}

std::string to_text(const Wrong& wrong) {
  std::string text = fmt::format("word {} is {:#x}, not {:#x}: bit", wrong.at, wrong.found, wrong.expected);
  std::uint64_t bits = wrong.found ^ wrong.expected;
  for (int shown = 0; bits != 0 && shown < 8; ++shown, bits &= bits - 1)
    text += ' ' + std::to_string(std::countr_zero(bits));
  return bits == 0 ? text : text + " ...";
}

#ifdef MULTINODE_HAVE_CUDA

namespace {

using multinode::check;

constexpr std::size_t chunk = std::size_t{32} << 20;  // bytes
constexpr std::size_t chunk_words = chunk / sizeof(std::uint64_t);

struct FreePinned {
  void operator()(std::uint64_t* words) const { cudaFreeHost(words); }
};
std::unique_ptr<std::uint64_t[], FreePinned> pinned_chunk() {
  void* data = nullptr;
  check(cudaMallocHost(&data, chunk));
  return std::unique_ptr<std::uint64_t[], FreePinned>(static_cast<std::uint64_t*>(data));
}

class PatternTest {
 public:
  explicit PatternTest(std::size_t chunks) : memory_(chunks * chunk_words), chunks_(chunks) {}

  // Returns how many chunks were written, and then compared: memory that appears at two addresses shows.
  std::size_t run(int round, double seconds, bool corrupt, Wrong& wrong) {
    const auto start = std::chrono::steady_clock::now();
    std::size_t done = 0;
    for (; done < chunks_ && (done == 0 || multinode::seconds_since(start) < seconds / 2); ++done) {
      fill(words(), done * chunk_words, round);
      copy(at(done), host(), cudaMemcpyHostToDevice);
    }
    for (std::size_t i = 0; i < done; ++i) {
      copy(host(), at(i), cudaMemcpyDeviceToHost);
      if (corrupt && i == 0) host()[1234] ^= 8;
      const Wrong found = compare(words(), i * chunk_words, round);
      if (wrong.count == 0)
        wrong = found;
      else
        wrong.count += found.count;
    }
    return done;
  }

  // The best of the copies that fit into `seconds`, in GB/s copied.
  double rate(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, double seconds) {
    double best = 0;
    for (const auto start = std::chrono::steady_clock::now(); best == 0 || multinode::seconds_since(start) < seconds;) {
      const auto before = std::chrono::steady_clock::now();
      for (int i = 0; i < 4; ++i) check(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()));
      stream_.synchronize();
      best = std::max(best, 4.0 * static_cast<double>(bytes) / multinode::seconds_since(before) / 1e9);
    }
    return best;
  }

  std::uint64_t* at(std::size_t i) const { return memory_.data() + i * chunk_words; }
  std::uint64_t* host() const { return host_.get(); }

 private:
  std::span<std::uint64_t> words() const { return {host(), chunk_words}; }
  void copy(void* to, const void* from, cudaMemcpyKind kind) {
    check(cudaMemcpyAsync(to, from, chunk, kind, stream_.get()));
    stream_.synchronize();
  }

  multinode::DeviceBuffer<std::uint64_t> memory_;
  std::size_t chunks_;
  std::unique_ptr<std::uint64_t[], FreePinned> host_ = pinned_chunk();
  multinode::Stream stream_;
};

Findings look_at_gpu(int device, double seconds, bool corrupt) {
  check(cudaSetDevice(device));
  const std::string name = "gpu" + std::to_string(device) + "_";
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  const std::size_t chunks = free / 20 * 19 / chunk;  // CUDA and its libraries need some
  if (chunks < 2)
    return {faulty(name + "memory",
                   "GPU " + std::to_string(device) + " has no memory free: end what uses it (nvidia-smi)")};
  PatternTest test(chunks);
  Wrong wrong;
  std::size_t done = chunks;
  for (const int round : {0, 1}) done = std::min(done, test.run(round, seconds / 2, corrupt && round == 1, wrong));

  char pci[32] = {};
  check(cudaDeviceGetPCIBusId(pci, sizeof pci, device));
  Finding memory{name + "memory", wrong.count,      "wrong words",
                 "equal",         wrong.count == 0, fmt::format("{} of {} MiB", done * chunk >> 20, total >> 20)};
  if (wrong.count != 0)
    memory.why = "GPU " + std::to_string(device) + " (" + pci + "): " + to_text(wrong) +
                 "; replace it if that comes again (nvidia-smi -q -d ECC, dmesg: Xid)";
  Findings all{memory};
  if (multinode::emulated_gpus()) return all;                                                // their rates mean nothing
  const std::size_t half = std::min<std::size_t>(chunks / 2 * chunk, std::size_t{1} << 30);  // more than a cache holds
  const auto add = [&](const char* what, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    all.push_back({name + what, test.rate(to, from, bytes, kind, seconds / 6), "GB/s", "more", true, ""});
  };
  add("from_host", test.at(0), test.host(), chunk, cudaMemcpyHostToDevice);
  add("to_host", test.host(), test.at(0), chunk, cudaMemcpyDeviceToHost);
  add("copy", test.at(chunks / 2), test.at(0), half, cudaMemcpyDeviceToDevice);
  return all;
}

}  // namespace

std::optional<Gpus> gpus_of_cuda() {
  Gpus gpus{"CUDA"};
  const int count = multinode::device_count(&gpus.error);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device));
    gpus.names.push_back(
        fmt::format("{} {:.2f} GiB", properties.name, static_cast<double>(properties.totalGlobalMem) / 0x1p30));
  }
  return gpus;
}

Findings look_at_gpus(const std::vector<int>& devices, double seconds, bool corrupt) {
  if (devices.empty()) return {absent("gpu_memory", "CUDA sees no GPU")};
  Findings all;
  for (const int device : devices)
    for (Finding& finding : look_at_gpu(device, seconds, corrupt)) all.push_back(std::move(finding));
  return all;
}

#else

std::optional<Gpus> gpus_of_cuda() { return std::nullopt; }

Findings look_at_gpus(const std::vector<int>&, double, bool) { return {absent("gpu_memory", "built without CUDA")}; }

#endif

}  // namespace node_check
