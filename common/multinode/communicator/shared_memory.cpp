// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/communicator/shared_memory.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/world.hpp>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace multinode {

namespace {

constexpr std::size_t page = 4096, cache_line = 64;
constexpr std::size_t tile = 8192;  // bytes that are reduced at a time, in the L1 cache
// Looks at the others before a rank sleeps: some 50 us. Most often they are a few microseconds late, and to wake up
// takes as long. sched_yield() instead would wait for the end of another thread's time slice on a busy machine.
constexpr int spins = 2000;
constexpr char name[] = "multinode";

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

// At the start of the mapping. A meeting: the last rank to arrive starts the next round.
struct SharedMemory::Header {
  std::array<char, 64> token;  // proves that this is the memory that rank 0 made
  alignas(cache_line) std::atomic<std::uint32_t> arrived;
  alignas(cache_line) std::atomic<std::uint32_t> round;
  alignas(cache_line) std::atomic<std::uint32_t> sleepers;
  struct alignas(cache_line) Call {
    std::size_t offset, bytes;
  };
  Call calls[1];  // of each rank: what it reduces

  static std::size_t bytes(int ranks) {
    return rounded(sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(Call), page);
  }
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

SharedMemory::SharedMemory(World& world, std::size_t bytes, bool share)
    : rank_(world.rank()), size_(world.size()), bytes_(bytes), stride_(rounded(std::max<std::size_t>(bytes, 1), page)) {
  if (share && size_ > 1 && world.node_count() == 1 && join(world)) return;
  map(-1, stride_);
  blocks_ = mapping_ - static_cast<std::size_t>(rank_) * stride_;  // block(rank_) is all there is
}

SharedMemory::SharedMemory(std::byte* memory, int rank, int size, std::size_t bytes)
    : rank_(rank), size_(size), bytes_(bytes), stride_(rounded(std::max<std::size_t>(bytes, 1), page)) {
  use(memory);
}

SharedMemory::~SharedMemory() { unmap(); }

std::size_t SharedMemory::total(int size, std::size_t bytes) {
  return Header::bytes(size) + static_cast<std::size_t>(size) * rounded(std::max<std::size_t>(bytes, 1), page);
}

void SharedMemory::use(std::byte* memory) {
  header_ = std::launder(reinterpret_cast<Header*>(memory));
  blocks_ = memory + Header::bytes(size_);
  crowded_ = size_ > sysconf(_SC_NPROCESSORS_ONLN);
}

// fd -1: private memory.
void SharedMemory::map(int fd, std::size_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  mapping_ = static_cast<std::byte*>(at);
  mapped_ = bytes;
  madvise(at, bytes, MADV_HUGEPAGE);  // fewer misses of the TLB; a kernel without huge pages refuses, and that is all
}

void SharedMemory::unmap() noexcept {
  if (mapping_) munmap(mapping_, mapped_);
  mapping_ = nullptr;
}

// Rank 0 makes the memory; the others open it as /proc/PID/fd/N. Returns whether all ranks could, the same on all.
bool SharedMemory::join(World& world) {
  const std::size_t total = SharedMemory::total(size_, bytes_);
  Descriptor fd;
  std::string place;
  const auto attempt = [&](auto&& function) {
    try {
      return function();
    } catch (const std::exception&) {  // the reason does not matter: without shared memory it works as well
      unmap();
      return false;
    }
  };
  if (rank_ == 0)
    attempt([&] {
      rlimit limit{};
      check_errno(getrlimit(RLIMIT_FSIZE, &limit), "getrlimit");
      if (limit.rlim_cur < total) return false;  // ftruncate would raise SIGXFSZ
      fd = Descriptor(check_errno(memfd_create(name, MFD_CLOEXEC), "memfd_create"));
      check_errno(ftruncate(fd.get(), static_cast<off_t>(total)), "ftruncate");
      map(fd.get(), total);
      std::string token = random_token();
      Header* const header = new (mapping_) Header{};
      token.resize(sizeof Header::token);
      std::ranges::copy(token, header->token.begin());
      place = std::to_string(getpid()) + " " + std::to_string(fd.get()) + " " + token;
      return true;
    });
  place = world.broadcast("sharing memory", place);
  const auto open_that_of_rank_0 = [&] {
    std::istringstream in(place);
    std::string pid, number, token;
    in >> pid >> number >> token;
    const std::filesystem::path link = std::filesystem::path("/proc") / pid / "fd" / number;
    // In another PID namespace this may be any file: do not open it.
    if (!read_symlink(link).string().starts_with(std::string("/memfd:") + name)) return false;
    fd = Descriptor(check_errno(open(link.c_str(), O_RDWR | O_CLOEXEC), "open"));
    struct stat status {};
    check_errno(fstat(fd.get(), &status), "fstat");
    if (static_cast<std::size_t>(status.st_size) != total) return false;
    map(fd.get(), total);
    token.resize(sizeof Header::token);
    if (std::memcmp(mapping_, token.data(), token.size()) == 0) return true;
    unmap();
    return false;
  };
  const bool mapped = !place.empty() && (rank_ == 0 || attempt(open_that_of_rank_0));
  const std::string all = world.combine_on_rank_0("sharing memory", mapped ? "1" : "0", [](const auto& answers) {
    return std::ranges::count(answers, "1") == std::ssize(answers) ? "1" : "0";
  });
  if (all != "1") {
    unmap();
    return false;
  }
  use(mapping_);
  return true;
}

// Returns when all ranks have called it. What they wrote before it is visible after it.
void SharedMemory::meet() {
  Header& h = *header_;
  const std::uint32_t round = h.round.load(std::memory_order_relaxed);  // it cannot change before this rank arrives
  if (h.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
    h.arrived.store(0, std::memory_order_relaxed);
    h.round.store(round + 1);
    if (h.sleepers.load()) syscall(SYS_futex, &h.round, FUTEX_WAKE, size_, nullptr, nullptr, 0);
    return;
  }
  const auto over = [&] { return h.round.load(std::memory_order_acquire) != round; };
  for (int i = 0; i < (crowded_ ? 0 : spins); ++i) {
    if (over()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  h.sleepers.fetch_add(1);
  while (h.round.load() == round) syscall(SYS_futex, &h.round, FUTEX_WAIT, round, nullptr, nullptr, 0);
  h.sleepers.fetch_sub(1);
}

// Returns the block's offset in own_block(), when all ranks have called it: the data of all are there.
std::size_t SharedMemory::begin(const Block& block, const char* operation) {
  const std::size_t bytes = block.bytes();
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(block.data) - own_block().data());
  header_->calls[rank_] = {offset, bytes};
  meet();
  if (const Header::Call& first = header_->calls[0]; first.offset != offset || first.bytes != bytes)
    throw std::invalid_argument(std::string(operation) + " in shared memory: " + std::to_string(bytes) + " bytes at " +
                                std::to_string(offset) + " on rank " + std::to_string(rank_) + ", " +
                                std::to_string(first.bytes) + " at " + std::to_string(first.offset) + " on rank 0");
  return offset;
}

// Bytes first ... end - 1 of the block. The result goes to all ranks' blocks, or to this rank's alone.
void SharedMemory::reduce(const Block& whole, std::size_t offset, std::size_t first, std::size_t end,
                          Reduction reduction, double factor, bool for_all) {
  alignas(cache_line) std::array<std::byte, tile> sum;
  for (std::size_t at = first, length = 0; at < end; at += length) {
    length = std::min(tile, end - at);
    const auto of = [&](int r) { return block(r) + offset + at; };
    const std::size_t count = length / size_of(whole.type);
    combine(whole.type, reduction, sum.data(), of(0), of(1), count);
    for (int r = 2; r < size_; ++r) combine(whole.type, reduction, sum.data(), sum.data(), of(r), count);
    if (reduction == Reduction::average) divide(whole.type, sum.data(), count, size_);
    if (factor != 1) scale(whole.type, sum.data(), count, factor);
    for (int r = for_all ? 0 : rank_; r < (for_all ? size_ : rank_ + 1); ++r) std::memcpy(of(r), sum.data(), length);
  }
}

void SharedMemory::all_reduce(const Block& block, Reduction reduction, double factor) {
  const std::size_t offset = begin(block, "all_reduce");
  const auto begin_of_part = [&](int r) {
    const auto before = block.count * static_cast<std::size_t>(r) / static_cast<std::size_t>(size_);
    return std::min(rounded(before * size_of(block.type), cache_line), block.bytes());
  };
  reduce(block, offset, begin_of_part(rank_), begin_of_part(rank_ + 1), reduction, factor, true);
  meet();  // the results of all ranks are there
}

void SharedMemory::reduce_scatter(const Block& part, Reduction reduction, double factor) {
  const auto size = static_cast<std::size_t>(size_);
  const std::size_t first = part.bytes() * static_cast<std::size_t>(rank_);
  const Block whole(static_cast<std::byte*>(part.data) - first, part.count * size, part.type);
  reduce(whole, begin(whole, "reduce_scatter"), first, first + part.bytes(), reduction, factor, false);
  meet();  // no rank reads this one's block any more
}

void SharedMemory::all_gather(const Block& whole) {
  const std::size_t offset = begin(whole, "all_gather"), part = whole.bytes() / static_cast<std::size_t>(size_);
  // Each rank fetches: to write into another's memory would move every cache line twice.
  for (int r = 0; r < size_; ++r) {
    const std::size_t at = offset + part * static_cast<std::size_t>(r);
    if (r != rank_) std::memcpy(block(rank_) + at, block(r) + at, part);
  }
  meet();  // no rank reads this one's block any more
}

}  // namespace multinode
