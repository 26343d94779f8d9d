// The wrappers of MPI's calls, for programs in C, C++ and Fortran: MPICH's Fortran calls MPI_Send, Open MPI's
// PMPI_Send, so each wrapper has both names. They must refer to none of MPI's data, such as Open MPI's MPI_COMM_WORLD,
// because the library is also loaded into processes without MPI, such as a shell that starts the program.
#include "recorder.hpp"

#include <mpi.h>
#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>

// mpi.h promises that some pointers are not NULL, or marks old calls; the wrappers only pass them on.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace who_waits {

namespace {

#ifdef OPEN_MPI
#define HANDLE(function, type, mpich, open_mpi)                                    \
  type function() {                                                                \
    static const auto handle = static_cast<type>(::dlsym(RTLD_DEFAULT, open_mpi)); \
    return handle;                                                                 \
  }
#else
#define HANDLE(function, type, mpich, open_mpi) \
  type function() { return mpich; }
#endif
HANDLE(world, MPI_Comm, MPI_COMM_WORLD, "ompi_mpi_comm_world")
HANDLE(self, MPI_Comm, MPI_COMM_SELF, "ompi_mpi_comm_self")
HANDLE(null_communicator, MPI_Comm, MPI_COMM_NULL, "ompi_mpi_comm_null")
HANDLE(null_type, MPI_Datatype, MPI_DATATYPE_NULL, "ompi_mpi_datatype_null")

// Between MPI_Init and MPI_Finalize, of a record. Outside of these, and for arguments that are wrong, the wrappers must
// call nothing of MPI, because the error would name that function instead of the program's.
std::atomic<bool> running{false};
bool skips() { return !running.load(std::memory_order_relaxed) || inside(); }

template <class Handle>
std::uintptr_t value_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>)
    return reinterpret_cast<std::uintptr_t>(handle);
  else
    return static_cast<std::uintptr_t>(static_cast<unsigned>(handle));
}

std::uint64_t bytes_of(std::int64_t count, MPI_Datatype type) {
  MPI_Count size = 0;
  if (count > 0 && value_of(type) && type != null_type()) PMPI_Type_size_x(type, &size);
  return size < 0 ? 0 : static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(size);
}

// An id is made of the members, too.
Communicator& add_communicator(MPI_Comm handle, std::uint64_t id) {
  int rank = 0, size = 0, between = 0;
  PMPI_Comm_rank(handle, &rank);
  PMPI_Comm_test_inter(handle, &between);
  MPI_Group members, all;
  between ? PMPI_Comm_remote_group(handle, &members) : PMPI_Comm_group(handle, &members);
  PMPI_Comm_group(world(), &all);
  PMPI_Group_size(members, &size);
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(size)), world_ranks(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  PMPI_Group_translate_ranks(members, size, ranks.data(), all, world_ranks.data());
  PMPI_Group_free(&members);
  PMPI_Group_free(&all);
  const std::uint64_t uncertain = between ? uncertain_id : id & uncertain_id;
  for (std::int32_t& one : world_ranks) {
    if (one < 0) one = unknown;
    if (id != world_id) id = mix(id & ~uncertain_id, static_cast<std::uint64_t>(one)) | uncertain;
  }
  return add(value_of(handle), id, size, rank, std::move(world_ranks));
}

// nullptr: its creation was not seen, or it is none. See used().
Communicator* communicator(MPI_Comm handle) {
  if (Communicator* const known = find(value_of(handle))) return known;
  return handle == world()  ? &add_communicator(handle, world_id)
         : handle == self() ? &add_communicator(handle, self_id)
                            : nullptr;
}

// After a recorded call.
void used(const Call& call, MPI_Comm handle, int result) {
  if (call.kind != Kind::none && result != MPI_SUCCESS) record()->incomplete = true;
  if (call.communicator == uncertain_id && result == MPI_SUCCESS && !find(value_of(handle)))
    add_communicator(handle, uncertain_id);
}

// A message or a receive starts.
void post(Call& call) {
  static std::atomic<std::uint64_t> receives{0};  // posted receives get the messages that fit in this order
  if (role_of(call.kind) == Role::send || role_of(call.kind) == Role::both) call.meeting = count_sent(call);
  if (call.kind == Kind::MPI_Irecv || call.kind == Kind::MPI_Recv_init)
    call.sequence = receives.fetch_add(1, std::memory_order_relaxed) + 1;
}

void receive_from(const Call& call, std::int32_t peer, std::int32_t tag) {
  meet({.number = count_received(call.communicator, peer, tag),
        .bytes = call.bytes,
        .peer = peer,
        .tag = tag,
        .gives = true,
        .waits = true});
}

// A receive has got its message. Source and tag of its own call are enough unless they are wildcards.
void received(const Call& call, const MPI_Status& status) {
  std::int32_t peer = call.from();
  if (call.communicator == uncertain_id) return;
  if (peer == any)
    if (const Communicator* const where = with_id(call.communicator)) peer = where->world_rank(status.MPI_SOURCE);
  if (peer == any)
    record()->unknown_calls = true;
  else
    receive_from(call, peer, call.wanted_tag() == any ? status.MPI_TAG : call.wanted_tag());
}

void end(int number, const MPI_Status& status) {
  const Call call = complete(number);
  if (role_of(call.kind) == Role::receive) received(call, status);
  if (role_of(call.kind) == Role::collective) meet({.number = call.meeting, .waits = call.waits != 0});
}

// What each MPI_Start starts.
std::mutex persistent_mutex;
auto& persistent() {
  static auto* const them = new std::map<std::uintptr_t, Call>;
  return *them;
}
Call restart(MPI_Request request) {
  if (skips()) return {};
  const std::lock_guard lock(persistent_mutex);
  const auto found = persistent().find(value_of(request));
  if (found == persistent().end()) {  // of a collective
    record()->unknown_calls = true;
    return {};
  }
  Call call = found->second;
  post(call);
  start(value_of(request), call);
  return call;
}

template <Kind kind>
constexpr bool named(std::string_view start, std::string_view end) {
  return std::string_view(name_of(kind)).starts_with(start) && std::string_view(name_of(kind)).ends_with(end);
}

// A program that wants no status: its receive with a wildcard needs one.
template <class Statuses>
void give_statuses(MPI_Status*& wanted, std::size_t count, Statuses& own) {
  if (wanted != MPI_STATUSES_IGNORE && wanted != MPI_STATUS_IGNORE) return;
  own.resize(count);
  wanted = own.data();
}

// Sends, receives, probes, and their forms that return at once.
template <Kind kind, int comm, class... A>
INLINE int message(A... a) {
  std::tuple<A...> all(a...);
  auto& last = std::get<sizeof...(A) - 1>(all);
  constexpr bool has_status = std::is_same_v<decltype(last), MPI_Status*&>, has_data = comm >= 5;
  constexpr bool probes = named<kind>("", "robe"), polls = named<kind>("MPI_I", "robe");
  Call call;
  const auto real_call = [&] {
    const int result = std::apply([](A... b) { return next<kind, int>(b...); }, all);
    used(call, std::get<comm>(all), result);
    return result;
  };
  if (!skips()) {
    const Communicator* const where = communicator(std::get<comm>(all));
    const auto peer = [&](int rank) {
      return rank == MPI_ANY_SOURCE ? any : rank == MPI_PROC_NULL ? no_rank : where ? where->world_rank(rank) : unknown;
    };
    static_assert(MPI_ANY_TAG == any);
    call.kind = kind;  // no copy of a Call that was just made: such loads wait
    call.communicator = where ? where->id : uncertain_id;
    call.peer = peer(std::get<comm - 2>(all)), call.tag = std::get<comm - 1>(all);
    if constexpr (has_data) call.bytes = bytes_of(std::get<1>(all), std::get<2>(all));
    if constexpr (role_of(kind) == Role::both) {
      call.receive_peer = call.peer, call.receive_tag = call.tag;
      call.peer = peer(std::get<3>(all)), call.tag = std::get<4>(all);
    }
  }
  if constexpr (named<kind>("", "_init")) {
    const int result = real_call();
    const std::lock_guard lock(persistent_mutex);
    if (result == MPI_SUCCESS) persistent()[value_of(*last)] = call;
    return result;
  } else if constexpr (!has_status) {
    post(call);
    const Inside in(call);
    const int result = real_call();
    if constexpr (comm + 2 == sizeof...(A))
      if (result == MPI_SUCCESS) start(value_of(*last), call);
    return result;
  } else {
    boost::container::small_vector<MPI_Status, 1> own;
    give_statuses(last, 1, own);
    std::optional<Inside> in;
    const void* const site = __builtin_return_address(0);
    if constexpr (!polls) {
      post(call);
      in.emplace(call, site);
    }
    const int result = real_call();
    if (result != MPI_SUCCESS) return result;
    if constexpr (polls) {
      if (!*std::get<comm + 1>(all)) return poll(call), result;
      in.emplace(call, site);
    }
    // After MPI_Mprobe, no other receive can get the message.
    if ((!probes || kind == Kind::MPI_Mprobe || kind == Kind::MPI_Improbe) && call.kind != Kind::none)
      received(call, *last);
    return result;
  }
}

// Waits and tests for requests: for all, any or some of them.
template <Kind kind, class... A>
INLINE int waiting(A... a) {
  std::tuple<A...> all(a...);
  constexpr std::size_t last = sizeof...(A) - 1;
  constexpr bool many = std::is_same_v<std::tuple_element_t<0, std::tuple<A...>>, int>;
  constexpr bool tests = named<kind>("MPI_Test", ""), some = named<kind>("", "some"), of_any = named<kind>("", "any");
  boost::container::small_vector<int, 16> numbers;  // a few without memory from the heap
  boost::container::small_vector<MPI_Status, 16> own;
  if (!skips() && std::get<many>(all)) {
    int count = 1;
    if constexpr (many) count = std::get<0>(all);
    for (int i = 0; i < count; ++i) numbers.push_back(request_number(value_of(std::get<many>(all)[i])));
    give_statuses(std::get<last>(all), numbers.size(), own);
  }
  MPI_Status* const statuses = std::get<last>(all);
  const auto ended = [&](int at, int status) {
    if (static_cast<std::size_t>(at) < numbers.size()) end(numbers[static_cast<std::size_t>(at)], statuses[status]);
  };
  std::optional<Inside> in;
  if constexpr (!tests)
    in.emplace(Call{.kind = kind}, __builtin_return_address(0)).waits_for({numbers.data(), numbers.size()});
  const int result = std::apply([](A... b) { return next<kind, int>(b...); }, all);
  if (result != MPI_SUCCESS) {
    for (const int number : numbers) complete(number);
    if (!numbers.empty()) record()->incomplete = true;
    return result;
  }
  bool found = true;
  if constexpr (some)
    found = *std::get<2>(all) != 0;
  else if constexpr (tests)
    found = *std::get<last - 1>(all);
  if (!found) {
    const auto request = std::ranges::find_if(numbers, [](int number) { return number >= 0; });
    if (request != numbers.end()) poll(started(*request));
  } else if constexpr (some) {  // or MPI_UNDEFINED, which is negative, as below
    for (int i = 0; i < *std::get<2>(all); ++i) ended(std::get<3>(all)[i], i);
  } else if constexpr (of_any) {
    ended(*std::get<2>(all), 0);
  } else {
    for (int i = 0; i < static_cast<int>(numbers.size()); ++i) ended(i, i);
  }
  return result;
}

// The next collective of a communicator. `root` and `count`: the places of these arguments, or -1.
template <Kind kind, int root, int count, class... A>
Call in_turn(MPI_Comm comm, A... a) {
  if (skips()) return {};
  const std::tuple<A...> all(a...);
  Call call{.kind = kind, .communicator = uncertain_id};
  if constexpr (root >= 0) call.root = std::get<root>(all);
  Communicator* const where = communicator(comm);
  if (!where) return call;
  const bool at_root = root >= 0 && where->shared && where->shared->rank == call.root;
  if constexpr (count >= 0 && root > count) {  // not all arguments count on all ranks of an intercommunicator
    constexpr int at_the_root = root == 6 ? 5 - count : count;  // of a gather or scatter
    if (!(where->id & uncertain_id))
      call.bytes = at_root ? bytes_of(std::get<at_the_root>(all), std::get<at_the_root + 1>(all))
                           : bytes_of(std::get<count>(all), std::get<count + 1>(all));
  } else if constexpr (count >= 0) {
    call.bytes = bytes_of(std::get<count>(all), std::get<count + 1>(all));
  }
  if constexpr (root >= 0) {  // all wait for the root, or the root for all
    call.gives = at_root == (named<kind>("", "cast") || named<kind>("", "catter") || named<kind>("", "catterv"));
    call.waits = !call.gives;
  } else if constexpr (named<kind>("", "scan")) {
    call.gives = call.waits = false;
  }
  return where->next(call);
}

template <Kind kind, int root, int count, class... A>
INLINE int collective(A... a) {
  const std::tuple<A...> all(a...);
  constexpr std::size_t last = sizeof...(A) - 1;
  constexpr bool starts = std::is_same_v<decltype(std::get<last>(all)), MPI_Request* const&>;
  const MPI_Comm comm = std::get<last - starts>(all);
  const Call call = in_turn<kind, root, count>(comm, a...);
  const Inside in(call);
  const int result = next<kind, int>(a...);
  used(call, comm, result);
  if constexpr (starts)
    if (result == MPI_SUCCESS) start(value_of(*std::get<last>(all)), call);
  return result;
}

// A new communicator: its id is made of its parent's, of the number of the call that made it, and of its members.
template <Kind kind, class... A>
INLINE int create(MPI_Comm comm, A... a) {
  const Call call = in_turn<kind, -1, -1>(comm);
  const int result = next_inside<kind, int>(call, comm, a...);
  used(call, comm, result);
  if (result != MPI_SUCCESS || call.kind == Kind::none) return result;
  const MPI_Comm made = *std::get<sizeof...(A) - 1>(std::tuple(a...));
  if (made != null_communicator())
    add_communicator(made, mix(call.communicator, call.sequence) | (call.communicator & uncertain_id));
  return result;
}

// All who start or end MPI.
template <Kind kind, class... A>
INLINE int everyone(A... a) {
  constexpr bool starts = kind != Kind::MPI_Finalize;
  if (!starts) running = false;
  const int result = next_inside<kind, int>({.kind = kind,
                                             .communicator = starts ? start_id : end_id,
                                             .sequence = 1,
                                             .meeting = starts ? start_meeting : end_meeting},
                                            a...);
  if (Record* const ours = record(); ours && result == MPI_SUCCESS) {
    if (starts) {
      const Communicator& all = *communicator(world());
      ours->world_size = static_cast<int>(all.world_ranks.size());
      ours->rank = all.shared->rank.load();
    }
    running = starts;
    ours->finalized = !starts;
  }
  return result;
}

}  // namespace

}  // namespace who_waits

using namespace who_waits;

#define REAL(name)                                                 \
  ([] {                                                            \
    static auto* const function = real<decltype(name)>("P" #name); \
    return function;                                               \
  }())

#pragma GCC visibility push(default)
extern "C" {
#define X WRAP
#define Y(...)
#include "calls.inc"

int MPI_Request_free(MPI_Request* request) {
  if (request) {  // a receive without a wait gets its message at an unknown time
    if (role_of(complete(request_number(value_of(*request))).kind) == Role::receive) record()->unknown_calls = true;
    const std::lock_guard lock(persistent_mutex);
    persistent().erase(value_of(*request));
  }
  return REAL(MPI_Request_free)(request);
}
int MPI_Start(MPI_Request* request) {
  const Inside in(request ? restart(*request) : Call{});
  return REAL(MPI_Start)(request);
}
int MPI_Startall(int count, MPI_Request requests[]) {
  std::vector<Call> calls;
  for (int i = 0; requests && i < count; ++i) calls.push_back(restart(requests[i]));
  const Inside in(calls.empty() ? Call{} : calls[0]);
  for (std::size_t i = 1; i < calls.size(); ++i)
    meet({.number = calls[i].meeting,
          .bytes = calls[i].bytes,
          .peer = calls[i].peer,
          .tag = calls[i].tag,
          .gives = true,
          .sends = true});
  return REAL(MPI_Startall)(count, requests);
}
int MPI_Cancel(MPI_Request* request) {
  if (Record* const ours = record()) ours->unknown_calls = true;
  return REAL(MPI_Cancel)(request);
}
int MPI_Comm_free(MPI_Comm* comm) {
  if (comm) forget(value_of(*comm));
  return REAL(MPI_Comm_free)(comm);
}
int MPI_Comm_disconnect(MPI_Comm* comm) {
  if (comm) forget(value_of(*comm));
  return REAL(MPI_Comm_disconnect)(comm);
}

#define SECOND_NAME(parameters, name, ...) extern decltype(name) P##name __attribute__((alias(#name)));
#define X SECOND_NAME
#define Y(...)
#include "calls.inc"
SECOND_NAME(1, MPI_Request_free)
SECOND_NAME(1, MPI_Start)
SECOND_NAME(2, MPI_Startall)
SECOND_NAME(1, MPI_Cancel)
SECOND_NAME(1, MPI_Comm_free)
SECOND_NAME(1, MPI_Comm_disconnect)
}
