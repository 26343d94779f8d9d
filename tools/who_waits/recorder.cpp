#include "recorder.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <string_view>
#include <utility>

namespace who_waits {

namespace {

// An entry of a hash table; nullptr: there is none, and no free one. `is` may claim a free one.
auto* search(auto& table, std::uint64_t hash, const auto& is) {
  for (std::size_t i = 0; i < 16; ++i, ++hash)
    if (is(table[hash % table.size()])) return &table[hash % table.size()];
  return decltype(&table[0])(nullptr);
}

thread_local ThreadRecord* own_thread = nullptr;
thread_local int depth = 0;

// The program's threads that have made no recorded call, and may still make one. Those of libraries do not count.
std::atomic<std::int32_t> unseen{0};
std::atomic<Record*> opened{nullptr};
void count_unseen(std::int32_t more) {
  unseen += more;
  if (Record* const ours = opened) ours->unseen_threads = unseen.load();
}
thread_local bool of_library = false;
thread_local struct Unseen {
  bool counts = false;
  void seen() {
    if (counts) counts = false, count_unseen(-1);
  }
  ~Unseen() { seen(); }
} this_thread;

bool is_in(const void* address, std::initializer_list<const char*> libraries) {
  Dl_info info{};
  if (!::dladdr(address, &info) || !info.dli_fname) return false;
  const char* const name = std::strrchr(info.dli_fname, '/');
  return name && std::ranges::any_of(libraries, [&](const char* one) { return std::strstr(name, one) == name; });
}
bool is_library(const void* address) {
  return is_in(address, {"/libmpi", "/libopen-", "/libpmix", "/libpr", "/libuc", "/libfabric", "/libnccl", "/libcud"});
}
// Whether a library of MPI, NCCL or CUDA makes a thread. `caller` is libstdc++ for a std::thread, whose argument has a
// table of functions in the library that made it.
bool made_by_library(const void* caller, const void* argument) {
  Dl_info info{};
  if (of_library || depth > 0 || is_library(caller)) return true;
  return ::dladdr(caller, &info) && info.dli_fname && std::strstr(info.dli_fname, "libstdc++") && argument &&
         is_library(*static_cast<const void* const*>(argument));
}
struct Start {
  void* (*function)(void*);
  void* argument;
  bool counts;
};
void* run_thread(void* start) {
  const Start own = *static_cast<Start*>(start);
  delete static_cast<Start*>(start);
  of_library = !own.counts;
  this_thread.counts = own.counts;
  return own.function(own.argument);
}

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
  if (!right || !record->pid.compare_exchange_strong(nobody_yet, ::getpid())) return nullptr;
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // a debugger may show the stack
  opened = record;
  count_unseen(0);
  return record;
}

ThreadRecord* thread_of(Record& record) {
  if (own_thread) return own_thread;
  this_thread.seen();
  const std::int32_t thread = ::gettid();
  for (ThreadRecord& one : record.threads) {
    std::int32_t none = 0;
    if (!one.thread.compare_exchange_strong(none, thread)) continue;
    thread_local struct End {
      ThreadRecord* record;
      ~End() {  // the main thread ends before static objects, which may call MPI_Finalize
        if (::gettid() == ::getpid()) return;
        while (record->in_regions) mark_region(false);
        record->thread = 0, own_thread = nullptr;
      }
    } end{&one};
    return own_thread = &one;
  }
  record.incomplete = true;
  return nullptr;
}

std::uint64_t count(std::atomic<std::uint64_t>& counter) {  // returns the new value
  return counter.fetch_add(1, std::memory_order_relaxed) + 1;
}

void bump(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {  // by its only writer
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
}

std::mutex communicators_mutex;
auto& communicators() {
  static auto* const them = new std::list<Communicator>;  // programs call MPI_Finalize in destructors of static objects
  return *them;
}
std::atomic<std::uint64_t> communicators_changes{1};

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

void* symbol(const char* name) {
  if (void* const known = ::dlsym(RTLD_NEXT, name)) return known;
  std::vector<char*> files;  // which must not be opened while they are listed
  const auto list = [](dl_phdr_info* info, std::size_t, void* to) {
    if (std::strstr(info->dlpi_name, ".so")) static_cast<std::vector<char*>*>(to)->push_back(::strdup(info->dlpi_name));
    return 0;
  };
  ::dl_iterate_phdr(list, &files);
  void* found = nullptr;
  for (char* const file : files) {
    void* const library =
        found || std::strstr(file, "libwho_waits") ? nullptr : ::dlopen(file, RTLD_NOLOAD | RTLD_LAZY);
    if (library) found = ::dlsym(library, name), ::dlclose(library);
    // The wrappers call some functions of MPI by name: Open MPI 5 leaves them local, Open MPI 4 does not.
    if (library && found) ::dlopen(file, RTLD_NOLOAD | RTLD_LAZY | RTLD_GLOBAL);
    std::free(file);
  }
  return found;
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {  // splitmix64
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + value + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) & ~uncertain_id;
}

namespace {
// The number that all give to the `number`th meeting of the same others: of them, of a hash, and of the hash by which
// it is kept. Meetings that are next to each other are kept together, also those with others, because ranks wait for a
// rank that has waited.
constexpr std::size_t most_others = 1 << 15;
std::uint64_t meeting_number(std::uint64_t others, std::uint64_t number) {
  constexpr std::uint64_t neighbours = 8;
  return (others % most_others) << 48 | (mix(others, number) % (1 << 28)) << 20 |
         mix(0, number / neighbours) % (1 << 20);
}
std::size_t others_of(std::uint64_t meeting) { return meeting >> 48 & (most_others - 1); }
bool wants_meetings(std::uint64_t communicator) {
  return !(communicator & uncertain_id) && record()->timed.load(std::memory_order_relaxed);
}
}  // namespace

void Communicator::next(Call& call) {
  call.communicator = id;
  if (!shared) return;
  call.sequence = shared->collectives.load(std::memory_order_relaxed) + 1;
  if (wants_meetings(id)) call.meeting = meeting_number(mix(0, id), call.sequence);
  shared->history[call.sequence % CommunicatorRecord::past].store(call);
  shared->collectives.store(call.sequence, std::memory_order_release);
}

Communicator* find(std::uintptr_t handle) {
  thread_local std::uintptr_t last = 0;
  thread_local Communicator* known = nullptr;
  thread_local std::uint64_t since = 0;
  if (known && last == handle && since == communicators_changes.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(communicators_mutex);
  const auto found = std::ranges::find(communicators(), handle, &Communicator::handle);
  if (found == communicators().end()) return nullptr;
  last = handle;
  since = communicators_changes.load(std::memory_order_relaxed);
  return known = &*found;
}

Communicator* with_id(std::uint64_t id) {
  const std::lock_guard lock(communicators_mutex);
  const auto found = std::ranges::find(communicators(), id, &Communicator::id);
  return found == communicators().end() ? nullptr : &*found;
}

Communicator& add(std::uintptr_t handle, std::uint64_t id, int size, int rank, std::vector<std::int32_t> world_ranks,
                  Sort sort, int side, const void* site) {
  const std::lock_guard lock(communicators_mutex);
  static std::uint32_t made = 0;
  Communicator& one =
      communicators().emplace_back(Communicator{handle, id, std::move(world_ranks), nullptr, side >= 0});
  if (Record* const ours = record()) {
    for (CommunicatorRecord& place : ours->communicators)
      if (place.id == 0 || (place.freed && !one.shared)) one.shared = &place;
    if (CommunicatorRecord* const shared = one.shared) {
      shared->id = 0;  // until it is complete
      shared->size = size;
      shared->rank = rank;
      shared->sort = sort;
      shared->side = side;
      shared->freed = false;
      shared->collectives = 0;
      shared->made = ++made;
      shared->site = reinterpret_cast<std::uintptr_t>(site);
      shared->name[0] = 0;
      shared->id.store(id, std::memory_order_release);
    } else {
      ours->incomplete = true;
    }
  }
  communicators_changes.fetch_add(1, std::memory_order_release);
  return one;
}

void rename(Communicator& one, std::uintptr_t handle) {
  const std::lock_guard lock(communicators_mutex);
  one.handle = handle;
  communicators_changes.fetch_add(1, std::memory_order_release);
}

void forget(std::uintptr_t handle) {
  const std::lock_guard lock(communicators_mutex);
  communicators().remove_if([&](const Communicator& one) {
    if (one.handle == handle && one.shared) one.shared->freed = true;
    return one.handle == handle;
  });
  communicators_changes.fetch_add(1, std::memory_order_release);
}

bool inside() { return depth > 0; }

namespace {
// How many words behind the place of this return address that of the next one is; 0: it leads into the program.
std::ptrdiff_t words_to_caller([[maybe_unused]] const void* site) {
#ifdef __x86_64__
  if (is_in(site, {"/libmpi_mpifh", "/libmpi_usempi", "/libmpifort", "/libmpichfort"})) {
    std::array<std::uintptr_t, 3> walk{reinterpret_cast<std::uintptr_t>(site)};
    const auto step = [](_Unwind_Context* context, void* to) {
      auto& [wanted, frame, words] = *static_cast<std::array<std::uintptr_t, 3>*>(to);
      if (frame) words = (_Unwind_GetCFA(context) - frame) / sizeof(void*);
      if (_Unwind_GetIP(context) == wanted) frame = _Unwind_GetCFA(context);
      return words ? _URC_END_OF_STACK : _URC_NO_REASON;
    };
    ::_Unwind_Backtrace(step, &walk);
    return static_cast<std::ptrdiff_t>(walk[2]);
  }
#endif
  return 0;
}
}  // namespace

const void* site_of(const void* const* place) {
  struct Known {
    const void* site = nullptr;
    std::ptrdiff_t words = 0;
  };
  thread_local std::array<Known, 256> cache;
  for (;;) {
    Known& known = cache[reinterpret_cast<std::uintptr_t>(*place) / 4 % cache.size()];
    if (known.site != *place) known = {*place, words_to_caller(*place)};
    if (known.words == 0) return *place;
    place += known.words;
  }
}

namespace {

// The call that this thread is inside, for --timeline.
struct Timing {
  Call call;
  Place* place = nullptr;
  std::int64_t enter = 0, left = 0;
  std::int64_t outside = 0;  // ns outside of calls
  std::size_t met = 0;
  std::array<Meeting, 64> meetings{};  // the first ones of the call
};
thread_local Timing timing;
std::mutex timing_mutex;

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

// The place of the call; one for all of its sizes if there are too many. nullptr: no room.
Place* place_of(Times& times, Kind kind, std::uint64_t bytes, const void* site) {
  static std::array<const void*, std::tuple_size_v<decltype(Times::places)>> sites{};
  const std::uint64_t hash = mix(mix(static_cast<std::uint64_t>(kind), bytes), reinterpret_cast<std::uintptr_t>(site));
  Place* const found = search(times.places, hash, [&](Place& one) {
    const void*& known = sites[static_cast<std::size_t>(&one - times.places.data())];
    if (one.kind == Kind::none) {
      known = site;
      one.kind = kind;
      one.bytes = bytes;
      one.site = reinterpret_cast<std::uintptr_t>(site) - 1;  // in the call, not behind it
      if (Dl_info info{}; ::dladdr(site, &info) && info.dli_fname) {
        std::strncpy(one.object.data(), info.dli_fname, one.object.size() - 1);
        if (static_cast<const Elf64_Ehdr*>(info.dli_fbase)->e_type == ET_DYN)
          one.site -= reinterpret_cast<std::uintptr_t>(info.dli_fbase);
      }
    }
    return one.kind == kind && one.bytes == bytes && known == site;
  });
  return found || !bytes ? found : place_of(times, kind, 0, site);
}

std::uint8_t made_as(std::uint64_t communicator) {
  const Communicator* const found = with_id(communicator);
  const std::uint32_t made = found && found->shared ? found->shared->made.load() : 0;
  return static_cast<std::uint8_t>(made < 256 ? made : 0);
}

void keep(Times& times, const Meeting& meeting) {
  static const std::int64_t start = meeting.leave;
  if (meeting.leave - start < times.from || meeting.enter - start > times.to) return;
  const auto kept = [&](const Meeting& one) { return times.sample.has(one); };
  const auto begin = times.meetings.begin();
  while (!times.last_ones && kept(meeting) && times.used == times.most) {
    ++times.thinned;
    times.sample.thin(times.meetings);
    times.used = static_cast<std::uint64_t>(std::partition(begin, times.meetings.end(), kept) - begin);
    ++times.thinned;
  }
  if (!kept(meeting)) return;
  times.meetings[times.used % times.most] = meeting;
  times.used.store(times.used + 1, std::memory_order_release);
}

void leave(Times& times, const ThreadRecord& thread) {
  const std::int64_t leave = now();
  const std::lock_guard lock(timing_mutex);
  static std::uint64_t alone = 0;
  struct Last {  // when this process met the same others
    std::int64_t left = 0, outside = 0;
    const ThreadRecord* thread = nullptr;
  };
  static std::array<Last, most_others> last_with{};
  timing.left = leave;
  if (!timing.place) return;
  ++timing.place->calls;
  timing.place->nanoseconds += static_cast<std::uint64_t>(leave - timing.enter);
  if (timing.met == 0)
    timing.meetings[timing.met++] = {.number = meeting_number(static_cast<std::uint64_t>(::getpid()), ++alone),
                                     .bytes = timing.call.bytes,
                                     .peer = timing.call.peer,
                                     .tag = timing.call.tag,
                                     .communicator = made_as(timing.call.communicator)};
  for (std::size_t i = 0; i < timing.met; ++i) {
    Meeting one = timing.meetings[i];
    Last& last = last_with[others_of(one.number)];
    const std::int64_t since = timing.enter - last.left;
    one.enter = timing.enter;
    one.leave = leave;
    const bool by_another = last.thread && last.thread != &thread;
    one.outside = std::min(since, by_another ? since : timing.outside - last.outside);
    one.level = level_of(std::max(leave - timing.enter, one.gives ? since : 0));
    last = {leave, timing.outside, &thread};
    one.place = static_cast<std::uint16_t>(timing.place - times.places.data());
    one.thread = static_cast<std::uint8_t>(&thread - record()->threads.data());
    keep(times, one);
  }
}

// What `name` points to, as a text; "": none. The kernel reads it, because the pointer may be any value.
std::array<char, std::tuple_size_v<decltype(Place::object)>> text_at(const char* name) {
  constexpr std::uintptr_t page = 4096;
  std::array<char, std::tuple_size_v<decltype(Place::object)>> text{};
  const auto first = std::min<std::uintptr_t>(page - reinterpret_cast<std::uintptr_t>(name) % page, text.size() - 1);
  const iovec to{text.data(), text.size() - 1};
  const iovec from[] = {{const_cast<char*>(name), first}, {const_cast<char*>(name) + first, text.size() - 1 - first}};
  if (::process_vm_readv(::getpid(), &to, 1, from, 2, 0) < 0) return {};
  for (char& c : text) {
    if (c == 0) break;
    if (c > 0 && (c < ' ' || c == 127)) return {};
    if (c < 0) c = '?';
  }
  return text;
}

// The place of the regions with this name.
Place* region_place(Times& times, const char* name) {
  std::uint64_t hash = 1;
  for (; *name; ++name) hash = mix(hash, static_cast<unsigned char>(*name));
  return place_of(times, Kind::region, hash, nullptr);
}

}  // namespace

void set_name(Communicator* one, const char* name) {
  if (!one || !one->shared) return;
  const auto text = text_at(name);
  auto& to = one->shared->name;
  for (std::size_t i = 0; i + 1 < to.size(); ++i) to[i] = text[i];
}

void mark_region(bool begins, std::optional<const char*> pointer) {
  Record* const ours = record();
  if (!ours || inside() || !ours->timed.load(std::memory_order_relaxed)) return;
  // A thread that has made no call gets no place, because there are few. CUDA's threads get one, because they run
  // functions of the program.
  ThreadRecord* const thread = of_library ? thread_of(*ours) : own_thread;
  if (!thread) return;
  const auto name = pointer ? text_at(*pointer) : decltype(Place::object){};
  if (pointer && !name[0]) return;
  Times& times = ours->times;
  auto& regions = thread->regions;
  const std::uint32_t count = thread->in_regions;
  const std::lock_guard lock(timing_mutex);
  Place* const named = pointer ? region_place(times, name.data()) : nullptr;
  if (begins && named && count < regions.size()) {
    if (!named->object[0]) named->object = named->bytes ? name : decltype(Place::object){"another region"};
    regions[count].place = static_cast<std::uint16_t>(named - times.places.data());
    regions[count].entered = now();
    thread->in_regions = count + 1;
    return;
  }
  std::uint32_t at = begins ? 0 : count;  // behind the region that ends
  while (at > 0 && named && &times.places[regions[at - 1].place] != named) --at;
  if (at == 0) return void(++times.odd_regions);
  Place& place = times.places[regions[at - 1].place];
  const std::int64_t leave = now();
  keep(times, {.number = meeting_number(place.bytes, ++place.calls),
               .enter = regions[at - 1].entered,
               .leave = leave,
               .place = static_cast<std::uint16_t>(&place - times.places.data()),
               .thread = static_cast<std::uint8_t>(thread - ours->threads.data()),
               .level = level_of(leave - regions[at - 1].entered)});
  for (; at < count; ++at) {  // regions may overlap
    regions[at - 1].place = regions[at].place.load();
    regions[at - 1].entered = regions[at].entered.load();
  }
  thread->in_regions = count - 1;
}

void meet(Meeting meeting, std::uint64_t communicator) {
  if (depth != 1 || meeting.number == 0 || timing.met == timing.meetings.size()) return;
  meeting.communicator = made_as(communicator);
  timing.meetings[timing.met++] = meeting;
}

void meet(const Call& call) {
  const std::string_view name = name_of(call.kind);
  const Role role = role_of(call.kind);
  const bool sends = role == Role::send || role == Role::both;
  meet({.number = call.meeting,
        .bytes = call.bytes,
        .peer = sends ? call.peer : no_rank,
        .tag = call.tag,
        .gives = call.gives != 0,
        .waits = call.waits && !name.starts_with("MPI_I") && !name.ends_with("_init"),
        .sends = sends},
       call.communicator);
}

namespace {
// Whether this thread has made the same call of a window in the last few ones: then it polls.
bool polls_again(const Call& call) {
  thread_local std::array<std::uint64_t, 16> last{};
  thread_local std::size_t next = 0;
  if (call.receive_tag == any || !fields_of(call.kind).polls) return false;
  const std::uint64_t hash =
      mix(mix(call.communicator, static_cast<std::uint64_t>(call.peer)),
          static_cast<std::uint64_t>(call.kind) << 32 | static_cast<std::uint32_t>(call.receive_tag));
  if (std::ranges::find(last, hash) != last.end()) return true;
  last[next++ % last.size()] = hash;
  return false;
}
}  // namespace

Inside::Inside(const Call& call, const void* const* place_of_site) {
  if (depth++ > 0) return;
  Record* const ours = record();
  if (!ours || !(thread_ = thread_of(*ours))) return;
  const void* const site = site_of(place_of_site);
  thread_->call.store(call);
  thread_->site.store(reinterpret_cast<std::uintptr_t>(site), std::memory_order_relaxed);
  thread_->waits.store(0, std::memory_order_relaxed);
  if (polls_again(call)) step_ += turn_of_poll;
  bump(thread_->turn, step_);
  if (!ours->timed.load(std::memory_order_relaxed)) return;
  Times& times = ours->times;
  timing.call = call;
  timing.met = 0;
  timing.enter = now();
  if (timing.left) timing.outside += timing.enter - timing.left;
  {
    const std::lock_guard lock(timing_mutex);
    timing.place = place_of(times, call.kind, call.bytes, site);
  }
  thread_->place = static_cast<std::uint16_t>(timing.place ? timing.place - times.places.data() : 0);
  thread_->entered = timing.enter;
  meet(call);
}

Inside::~Inside() {
  if (thread_ && record()->timed.load(std::memory_order_relaxed)) leave(record()->times, *thread_);
  --depth;
  if (!thread_) return;
  bump(thread_->turn, step_);
  if (step_ > 1)
    if (const Call call = thread_->call.load(); call.receive_tag > 0) poll(call);
}

void Inside::waits_for(std::span<const int> numbers) {
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
  std::uint64_t key =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 | static_cast<std::uint32_t>(tag);
  const auto is = [&](TrafficRecord& one) {
    if (one.communicator.load(std::memory_order_acquire) == 0) {
      static std::mutex adding;
      const std::lock_guard lock(adding);
      if (one.communicator.load() == 0) {
        one.peer_and_tag.store(key + 1, std::memory_order_release);
        one.communicator.store(communicator, std::memory_order_release);
      }
    }
    return one.communicator.load(std::memory_order_acquire) == communicator &&
           one.peer_and_tag.load(std::memory_order_acquire) == key + 1;
  };
  TrafficRecord* found = search(ours->traffic, mix(communicator, key), is);
  if (!found) key |= static_cast<std::uint32_t>(any), found = search(ours->other_tags, mix(communicator, key), is);
  if (!found) ours->incomplete = true;
  return found;
}

std::uint64_t meeting_of(std::uint64_t communicator, std::int32_t from, std::int32_t to, std::int32_t tag,
                         std::uint64_t number) {
  const auto word = [](std::int32_t value) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(value)); };
  if (!wants_meetings(communicator)) return 0;
  return meeting_number(mix(mix(communicator, word(from) << 32 | word(to)), word(tag)), number);
}
}  // namespace

std::uint64_t count_sent(const Call& call) {
  TrafficRecord* const one = traffic(call.communicator, call.peer, call.tag);
  return one ? meeting_of(call.communicator, record()->rank, call.peer, call.tag, count(one->sent)) : 0;
}

std::uint64_t count_received(std::uint64_t communicator, std::int32_t peer, std::int32_t tag, bool by_any) {
  TrafficRecord* const one = traffic(communicator, peer, tag);
  if (one && by_any) count(one->by_any);
  return one ? meeting_of(communicator, peer, record()->rank, tag, count(one->received)) : 0;
}

void start(std::uintptr_t handle, const Call& call) {
  Record* const ours = record();
  // Open MPI gives the same request to all operations that are complete at once.
  if (!ours || call.kind == Kind::none || handle == 0 || request_number(handle) >= 0) return;
  Request* const found = search(requests, mix(0, handle), [&](Request& one) {
    std::uintptr_t none = 0;
    return one.handle.compare_exchange_strong(none, handle);
  });
  if (!found) return void(ours->incomplete = true);
  found->call = call;
  RequestRecord& shared = ours->requests[static_cast<std::size_t>(found - requests.data())];
  shared.call.store(call);
  bump(shared.turn);
}

int request_number(std::uintptr_t handle) {
  if (handle == 0) return -1;
  const Request* const found = search(requests, mix(0, handle), [&](const Request& one) {
    return one.handle.load(std::memory_order_acquire) == handle;
  });
  return found ? static_cast<int>(found - requests.data()) : -1;
}

Call started(int number) { return requests[static_cast<std::size_t>(number)].call; }

Call complete(int number) {
  if (number < 0) return {};
  const auto at = static_cast<std::size_t>(number);
  if (requests[at].handle.load(std::memory_order_relaxed) == 0) return {};
  const Call call = requests[at].call;
  if (Record* const ours = record()) bump(ours->requests[at].turn);
  requests[at].handle.store(0, std::memory_order_release);
  return call;
}

void poll(const Call& call) {
  static thread_local std::uint64_t last = 0;
  Record* const ours = record();
  if (!ours || inside()) return;
  const auto words = [](std::int32_t a, auto b) {
    return static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
  };
  const std::uint64_t now =
      mix(mix(call.communicator, words(call.from(), call.wanted_tag())), words(call.peer, call.kind));
  if (now != last) ours->other_polls.fetch_add(1, std::memory_order_relaxed);
  last = now;
  ours->polled.store(call);
  ours->polls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace who_waits

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*function)(void*), void* argument) {
  using namespace who_waits;
  static const auto next = reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  auto* const start = new Start{function, argument, !made_by_library(__builtin_return_address(0), argument)};
  if (start->counts) count_unseen(1);
  const bool counts = start->counts;
  const int result = next(thread, attributes, run_thread, start);
  if (result != 0) {
    if (counts) count_unseen(-1);
    delete start;
  }
  return result;
}

// The header-only NVTX of a program loads the file in NVTX_INJECTION64_PATH, which is this library, and calls this. The
// numbers are those of nvtxTypes.h. Without a tool, nvtxRangePushA and nvtxRangePop also return -2.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*export_table)(unsigned)) {
  using Function = void (*)();
  struct Callbacks {
    std::size_t size;
    int (*functions)(int module, Function*** table, unsigned* count);
  };
  constexpr int callbacks_id = 1, core = 1, push = 9, pop = 11, not_tracked = -2;
  const auto* const callbacks = static_cast<const Callbacks*>(export_table(callbacks_id));
  Function** table = nullptr;
  unsigned count = 0;
  if (!callbacks || !callbacks->functions(core, &table, &count) || count <= pop) return 0;
  *table[push] =
      reinterpret_cast<Function>(+[](const char* name) { return who_waits::mark_region(true, name), not_tracked; });
  *table[pop] = reinterpret_cast<Function>(+[] { return who_waits::mark_region(false), not_tracked; });
  return 1;
}
