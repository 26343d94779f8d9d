#include "recorder.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <list>
#include <mutex>

namespace who_waits {

namespace {

constexpr std::size_t longest_search = 16;  // slots of a hash table

thread_local ThreadRecord* own_thread = nullptr;
thread_local int depth = 0;
std::atomic<bool> several_threads = false;  // more than one has made a call

Record* open_record() {
  const char* const path = std::getenv(record_variable);
  const int file = path ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return nullptr;
  void* const memory = ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  auto* const record = static_cast<Record*>(memory);
  std::int32_t nobody_yet = 0;
  const bool right = record->magic == Record::right_magic && record->size == sizeof(Record);
  return right && record->pid.compare_exchange_strong(nobody_yet, ::getpid()) ? record : nullptr;
}

ThreadRecord* thread_of(Record& record) {
  if (own_thread) return own_thread;
  const std::int32_t thread = ::gettid();
  for (ThreadRecord& one : record.threads) {
    std::int32_t none = 0;
    if (!one.thread.compare_exchange_strong(none, thread)) continue;
    if (&one != &record.threads[0]) several_threads = true;
    return own_thread = &one;
  }
  record.incomplete = true;
  return nullptr;
}

void count(std::atomic<std::uint64_t>& counter) {
  if (several_threads.load(std::memory_order_relaxed))
    counter.fetch_add(1, std::memory_order_relaxed);
  else
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void bump(std::atomic<std::uint64_t>& counter) {  // by its only writer
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
}

struct Communicators {
  std::mutex mutex;
  std::list<Communicator> all;
  std::atomic<std::uint64_t> changes{1};
};
Communicators& communicators() {
  static auto* const them = new Communicators;  // programs call MPI_Finalize in destructors of static objects
  return *them;
}

struct Request {
  std::atomic<std::uintptr_t> handle{0};
  Call call;
};
std::array<Request, std::tuple_size_v<decltype(Record::requests)>> requests;

}  // namespace

Record* record() {
  static std::atomic<Record*> ours = [] {
    ::pthread_atfork(nullptr, nullptr, [] { ours = nullptr; });  // a child of the program is another process
    return open_record();
  }();
  return ours.load(std::memory_order_relaxed);
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {  // splitmix64
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + value + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) & ~uncertain_id;
}

Call Communicator::next(Call call) {
  call.communicator = id;
  if (!shared) return call;
  call.sequence = shared->collectives.load(std::memory_order_relaxed) + 1;
  shared->history[call.sequence % CommunicatorRecord::past].store(call);
  shared->collectives.store(call.sequence, std::memory_order_release);
  return call;
}

Communicator* find(std::uintptr_t handle) {
  thread_local std::uintptr_t last = 0;
  thread_local Communicator* known = nullptr;
  thread_local std::uint64_t since = 0;
  Communicators& them = communicators();
  const std::uint64_t now = them.changes.load(std::memory_order_acquire);
  if (known && last == handle && since == now) return known;
  const std::lock_guard lock(them.mutex);
  for (Communicator& one : them.all)
    if (one.handle == handle) {
      last = handle;
      since = them.changes.load(std::memory_order_relaxed);
      return known = &one;
    }
  return nullptr;
}

Communicator& add(std::uintptr_t handle, std::uint64_t id, int size, int rank, std::vector<std::int32_t> world_ranks,
                  bool of_nccl) {
  Communicators& them = communicators();
  const std::lock_guard lock(them.mutex);
  Communicator& one = them.all.emplace_back();
  one.handle = handle;
  one.id = id;
  one.world_ranks = std::move(world_ranks);
  if (Record* const ours = record()) {
    for (CommunicatorRecord& free : ours->communicators)
      if (free.id.load() == 0) {
        one.shared = &free;
        free.size = size;
        free.rank = rank;
        free.of_nccl = of_nccl;
        free.collectives = 0;
        free.id.store(id, std::memory_order_release);
        break;
      }
    if (!one.shared) ours->incomplete = true;
  }
  them.changes.fetch_add(1, std::memory_order_release);
  return one;
}

void forget(std::uintptr_t handle) {
  Communicators& them = communicators();
  const std::lock_guard lock(them.mutex);
  them.all.remove_if([&](const Communicator& one) {
    if (one.handle == handle && one.shared) one.shared->id = 0;
    return one.handle == handle;
  });
  them.changes.fetch_add(1, std::memory_order_release);
}

bool inside() { return depth > 0; }

Inside::Inside(const Call& call) {
  if (depth++ > 0) return;
  Record* const ours = record();
  if (!ours || !(thread_ = thread_of(*ours))) return;
  thread_->call.store(call);
  thread_->waits.store(0, std::memory_order_relaxed);
  bump(thread_->turn);
}

Inside::~Inside() {
  --depth;
  if (thread_) bump(thread_->turn);
}

void Inside::waits_for(const std::vector<int>& numbers) {
  if (!thread_) return;
  std::uint32_t count = 0;
  for (const int number : numbers) {
    if (number < 0) continue;
    if (count < ThreadRecord::most_waits)
      thread_->requests[count].store(static_cast<std::uint16_t>(number), std::memory_order_relaxed);
    ++count;
  }
  thread_->waits.store(count, std::memory_order_release);
}

namespace {
TrafficRecord* traffic(std::uint64_t communicator, std::int32_t peer, std::int32_t tag) {
  Record* const ours = record();
  if (!ours || peer < 0) return nullptr;
  const std::uint64_t key =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 | static_cast<std::uint32_t>(tag);
  std::size_t at = mix(communicator, key);
  for (std::size_t i = 0; i < longest_search; ++i, ++at) {
    TrafficRecord& one = ours->traffic[at % ours->traffic.size()];
    std::uint64_t owner = one.communicator.load(std::memory_order_acquire);
    if (owner == communicator && one.peer_and_tag.load(std::memory_order_acquire) == key + 1) return &one;
    if (owner == 0) {
      static std::mutex adding;
      const std::lock_guard lock(adding);
      if (one.communicator.load() != 0) {
        --i, --at;  // another thread took it: look again
        continue;
      }
      one.peer_and_tag.store(key + 1, std::memory_order_release);
      one.communicator.store(communicator, std::memory_order_release);
      return &one;
    }
  }
  ours->incomplete = true;
  return nullptr;
}
}  // namespace

void count_sent(const Call& call) {
  if (TrafficRecord* const one = traffic(call.communicator, call.peer, call.tag)) count(one->sent);
}

void count_received(std::uint64_t communicator, std::int32_t peer, std::int32_t tag) {
  if (TrafficRecord* const one = traffic(communicator, peer, tag)) count(one->received);
}

void start(std::uintptr_t handle, const Call& call) {
  Record* const ours = record();
  // Open MPI gives the same request to all operations that are complete at once.
  if (!ours || handle == 0 || request_number(handle) >= 0) return;
  std::size_t at = mix(0, handle);
  for (std::size_t i = 0; i < longest_search; ++i, ++at) {
    Request& one = requests[at % requests.size()];
    std::uintptr_t none = 0;
    if (!one.handle.compare_exchange_strong(none, handle)) continue;
    one.call = call;
    RequestRecord& shared = ours->requests[at % requests.size()];
    shared.call.store(call);
    bump(shared.turn);
    return;
  }
  ours->incomplete = true;
}

int request_number(std::uintptr_t handle) {
  if (handle == 0) return -1;
  std::size_t at = mix(0, handle);
  for (std::size_t i = 0; i < longest_search; ++i, ++at)
    if (requests[at % requests.size()].handle.load(std::memory_order_acquire) == handle)
      return static_cast<int>(at % requests.size());
  return -1;
}

Call started(int number) { return requests[static_cast<std::size_t>(number)].call; }

bool complete(int number) {
  if (number < 0) return false;
  const auto at = static_cast<std::size_t>(number);
  if (requests[at].handle.load(std::memory_order_relaxed) == 0) return false;
  if (Record* const ours = record()) bump(ours->requests[at].turn);
  requests[at].handle.store(0, std::memory_order_release);
  return true;
}

void poll(const Call& call) {
  Record* const ours = record();
  if (!ours || inside()) return;
  ours->polled.store(call);
  ours->polls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace who_waits
