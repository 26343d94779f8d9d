// The wrappers of MPI's calls, for programs in C, C++ and Fortran: MPICH's Fortran calls MPI_Send, Open MPI's
// PMPI_Send, so each wrapper has both names. They must refer to none of MPI's data, such as Open MPI's MPI_COMM_WORLD,
// because the library is also loaded into processes without MPI, such as a shell that starts the program.
#include "recorder.hpp"

#include <mpi.h>
#include <boost/container/small_vector.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>

// mpi.h promises that some pointers are not NULL, or marks old calls; the wrappers only pass them on.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace who_waits {

namespace {

void* open_mpi_handle(const char* name) {
  void* const known = ::dlsym(RTLD_DEFAULT, name);
  return known ? known : symbol(name);
}
#ifdef OPEN_MPI
#define HANDLE(function, type, mpich, open_mpi)                              \
  type function() {                                                          \
    static const auto handle = static_cast<type>(open_mpi_handle(open_mpi)); \
    return handle;                                                           \
  }
#else
#define HANDLE(function, type, mpich, open_mpi) \
  type function() { return mpich; }
#endif
HANDLE(world, MPI_Comm, MPI_COMM_WORLD, "ompi_mpi_comm_world")
HANDLE(self, MPI_Comm, MPI_COMM_SELF, "ompi_mpi_comm_self")
HANDLE(null_communicator, MPI_Comm, MPI_COMM_NULL, "ompi_mpi_comm_null")
HANDLE(null_type, MPI_Datatype, MPI_DATATYPE_NULL, "ompi_mpi_datatype_null")
HANDLE(no_op, MPI_Op, MPI_NO_OP, "ompi_mpi_op_no_op")
HANDLE(replace, MPI_Op, MPI_REPLACE, "ompi_mpi_op_replace")

// MPI_Init and the sessions, of a record, that have started and not ended. Without one, and for arguments that are
// wrong, the wrappers must call nothing of MPI, because the error would name that function instead of the program's.
std::atomic<int> running{0};
bool skips() { return running.load(std::memory_order_relaxed) <= 0 || inside(); }

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

std::optional<MPI_Group> of_sessions;  // all processes, for a program of sessions
std::vector<std::int32_t> world_ranks(MPI_Group group) {
  MPI_Group all;
  int size = 0;
  if (of_sessions)
    all = *of_sessions;
  else
    PMPI_Comm_group(world(), &all);
  PMPI_Group_size(group, &size);
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(size)), in_world(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  PMPI_Group_translate_ranks(group, size, ranks.data(), all, in_world.data());
  if (!of_sessions) PMPI_Group_free(&all);
  for (std::int32_t& one : in_world) one = one < 0 ? unknown : one;
  return in_world;
}
std::vector<std::int32_t> world_ranks(int (*group_of)(MPI_Comm, MPI_Group*), MPI_Comm comm) {
  MPI_Group group;
  group_of(comm, &group);
  std::vector<std::int32_t> ranks = world_ranks(group);
  PMPI_Group_free(&group);
  return ranks;
}

// How often communicators with this id were made by calls that are in no order.
std::uint64_t numbered(std::uint64_t id) {
  static std::mutex mutex;
  static auto* const numbers = new std::map<std::uint64_t, std::uint64_t>;
  const std::lock_guard lock(mutex);
  return mix(id, ++(*numbers)[id]);
}

// An id is made of the members, too.
std::uint64_t with_members(std::uint64_t id, const std::vector<std::int32_t>& ranks) {
  const std::uint64_t uncertain = id & uncertain_id;
  for (const std::int32_t one : ranks) id = mix(id & ~uncertain_id, static_cast<std::uint64_t>(one)) | uncertain;
  return id;
}
Communicator& add_communicator(MPI_Comm handle, std::uint64_t id, bool in_no_order = false) {
  int rank = 0, between = 0, side = -1;
  PMPI_Comm_rank(handle, &rank);
  PMPI_Comm_test_inter(handle, &between);
  std::vector<std::int32_t> ranks = world_ranks(PMPI_Comm_group, handle);
  auto size = ranks.size();
  if (between) {
    auto others = world_ranks(PMPI_Comm_remote_group, handle);
    side = std::ranges::min(others) < std::ranges::min(ranks);
    size += others.size();
    if (std::ranges::count(ranks, unknown) + std::ranges::count(others, unknown)) id |= uncertain_id;
    id = side ? with_members(with_members(id, others), ranks) : with_members(with_members(id, ranks), others);
    ranks = std::move(others);
  } else if (id != world_id) {
    id = with_members(id, ranks);
  }
  if (in_no_order && !(id & uncertain_id)) id = numbered(id);
  return add(value_of(handle), id, static_cast<int>(size), rank, std::move(ranks), Sort::communicator, side);
}

// For an object that has the members of this communicator. Its creation is the call.
Communicator& add_like(const Communicator& one, std::uintptr_t handle, const Call& call, Sort sort = Sort::communicator,
                       const void* site = nullptr) {
  return add(handle, mix(call.communicator, call.sequence) | (call.communicator & uncertain_id),
             one.shared ? one.shared->size.load() : 0, one.shared ? one.shared->rank.load() : 0, one.world_ranks, sort,
             one.shared ? one.shared->side.load() : -1, site);
}

// nullptr: its creation was not seen, or it is none. See used().
Communicator* communicator(MPI_Comm handle) {
  if (Communicator* const known = find(value_of(handle))) return known;
  return handle == world()  ? &add_communicator(handle, world_id)
         : handle == self() ? &add_communicator(handle, self_id)
                            : nullptr;
}

// After a recorded call that has returned an error.
void keep_error(const Call& call) {
  if (call.kind != Kind::none) {
    record()->failed.store(call);
    if (role_of(call.kind) != Role::busy && role_of(call.kind) != Role::other) record()->incomplete = true;
  }
}
void used(const Call& call, MPI_Comm handle, int result) {
  if (result != MPI_SUCCESS) keep_error(call);
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

// A receive has got its message. Source and tag of its own call are enough unless they are wildcards.
void received(const Call& call, const MPI_Status& status) {
  std::int32_t peer = call.from();
  if (call.communicator == uncertain_id) return;
  if (peer == any)
    if (const Communicator* const where = with_id(call.communicator)) peer = where->world_rank(status.MPI_SOURCE);
  if (peer == any) return void(record()->unknown_calls = true);
  const std::int32_t tag = call.wanted_tag() == any ? status.MPI_TAG : call.wanted_tag();
  const std::uint64_t number = count_received(call.communicator, peer, tag, call.from() == any);
  meet({.number = number, .bytes = call.bytes, .peer = peer, .tag = tag, .gives = true, .waits = true},
       call.communicator);
}

std::array<std::atomic<bool>, std::tuple_size_v<decltype(Record::requests)>> cancelled;
void end(int number, const MPI_Status& status) {
  const Call call = complete(number);
  int did_not_happen = 0;
  if (number >= 0 && cancelled[static_cast<std::size_t>(number)].exchange(false))
    PMPI_Test_cancelled(&status, &did_not_happen);
  if (did_not_happen) {
    if (role_of(call.kind) == Role::send) record()->unknown_calls = true;  // it was counted
    return;
  }
  if (role_of(call.kind) == Role::receive) received(call, status);
  if (role_of(call.kind) == Role::collective)
    meet({.number = call.meeting, .waits = call.waits != 0}, call.communicator);
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
  if (role_of(call.kind) == Role::collective) {
    if (Communicator* const starts = find(value_of(request))) starts->next(call);
  } else {
    post(call);
  }
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
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::message) INLINE int wrapped(A... a) {
  constexpr int comm = fields_of(kind).communicator;
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
    call.kind = base(kind);  // no copy of a Call that was just made: such loads wait
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
    const void* const* const place = PLACE_OF_SITE;
    if constexpr (!polls) {
      post(call);
      in.emplace(call, place);
    }
    const int result = real_call();
    if (result != MPI_SUCCESS) return result;
    if constexpr (polls) {
      if (!*std::get<comm + 1>(all)) return poll(call), result;
      in.emplace(call, place);
    }
    // After MPI_Mprobe, no other receive can get the message.
    if ((!probes || kind == Kind::MPI_Mprobe || kind == Kind::MPI_Improbe) && call.kind != Kind::none)
      received(call, *last);
    if constexpr (kind == Kind::MPI_Mprobe || kind == Kind::MPI_Improbe)  // until MPI_Mrecv
      start(value_of(*std::get<sizeof...(A) - 2>(all)), call);
    return result;
  }
}

// Waits and tests for requests: for all, any or some of them.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::waiting) INLINE int wrapped(A... a) {
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
  if constexpr (!tests) in.emplace(Call{.kind = kind}, PLACE_OF_SITE).waits_for({numbers.data(), numbers.size()});
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
    const bool one_of_many =
        (some || of_any) && std::ranges::count_if(numbers, [](int number) { return number >= 0; }) > 1;
    if (request != numbers.end()) poll(one_of_many ? Call{.kind = kind} : started(*request));
  } else if constexpr (some) {  // or MPI_UNDEFINED, which is negative, as below
    for (int i = 0; i < *std::get<2>(all); ++i) ended(std::get<3>(all)[i], i);
  } else if constexpr (of_any) {
    ended(*std::get<2>(all), 0);
  } else {
    for (int i = 0; i < static_cast<int>(numbers.size()); ++i) ended(i, i);
  }
  return result;
}

// What a collective expects from and sends to each peer. A piece: a rank in MPI_COMM_WORLD, and bytes.
using Pieces = std::vector<std::pair<std::int32_t, std::uint64_t>>;
void keep_pieces(const Call& call, const Pieces& from, const Pieces& to) {
  PiecesRecord& pieces = record()->pieces;
  pieces.communicator = 0;
  if (from.size() + to.size() > pieces.pieces.size()) return;
  std::size_t at = 0;
  for (const auto* const side : {&from, &to})
    for (const auto& [peer, bytes] : *side) pieces.pieces[at++] = static_cast<std::uint64_t>(peer) << 40 | bytes;
  pieces.from = static_cast<std::uint32_t>(from.size()), pieces.to = static_cast<std::uint32_t>(to.size());
  pieces.sequence = call.sequence, pieces.communicator = call.communicator;
}
// Sources and destinations in a topology, as ranks of its communicator.
void neighbours(MPI_Comm comm, std::vector<int>& from, std::vector<int>& to) {
  int topology = 0, numbers[3] = {}, rank = 0;
  PMPI_Topo_test(comm, &topology);
  PMPI_Comm_rank(comm, &rank);
  const auto resize = [](auto& list, int size) { list.resize(static_cast<std::size_t>(size)); };
  if (topology == MPI_DIST_GRAPH) {
    PMPI_Dist_graph_neighbors_count(comm, &numbers[0], &numbers[1], &numbers[2]);
    resize(from, numbers[0]), resize(to, numbers[1]);
    std::vector<int> weights(from.size()), more(to.size());
    PMPI_Dist_graph_neighbors(comm, numbers[0], from.data(), weights.data(), numbers[1], to.data(), more.data());
  } else if (topology == MPI_GRAPH) {
    PMPI_Graph_neighbors_count(comm, rank, numbers);
    resize(from, numbers[0]);
    PMPI_Graph_neighbors(comm, rank, numbers[0], from.data());
    to = from;
  } else if (topology == MPI_CART) {
    PMPI_Cartdim_get(comm, numbers);
    resize(from, 2 * numbers[0]);
    for (int i = 0; i < numbers[0]; ++i) PMPI_Cart_shift(comm, i, 1, &from[2 * i], &from[2 * i + 1]);
    to = from;
  }
}
// The places of counts and types: one for all peers, or a list of them.
template <int send, int send_type, int receive, int receive_type, class... A>
void pieces(MPI_Comm comm, const Communicator& where, const Call& call, const std::tuple<A...>& all) {
  if (std::get<0>(all) == MPI_IN_PLACE || std::get<(receive > 2 ? receive - 1 : 0)>(all) == MPI_IN_PLACE) return;
  const auto at = []<class List>(const List& list, std::size_t i) {
    if constexpr (std::is_pointer_v<List> && !std::is_same_v<List, MPI_Datatype>)
      return list[i];
    else
      return list;
  };
  const auto bytes = [&](auto counts, auto types, std::size_t i) { return bytes_of(at(counts, i), at(types, i)); };
  const bool near = std::string_view(name_of(call.kind)).find("eighbor") != std::string_view::npos;
  std::vector<int> sources(near ? 0 : where.world_ranks.size()), targets;
  std::iota(sources.begin(), sources.end(), 0);
  targets = sources;
  if (near) neighbours(comm, sources, targets);
  const bool is_root = where.shared && where.shared->rank == call.root, all_give = call.root < 0;
  const bool gathers = std::string_view(name_of(call.kind)).find("ather") != std::string_view::npos;
  Pieces from, to;
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i] >= 0 && (all_give || (gathers ? is_root : sources[i] == call.root)))
      from.emplace_back(where.world_rank(sources[i]), bytes(std::get<receive>(all), std::get<receive_type>(all), i));
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i] >= 0 && (all_give || (gathers ? targets[i] == call.root : is_root)))
      to.emplace_back(where.world_rank(targets[i]), bytes(std::get<send>(all), std::get<send_type>(all), i));
  keep_pieces(call, from, to);
}

// The next collective of a communicator.
template <Kind kind, class... A>
Call in_turn(MPI_Comm comm, A... a) {
  constexpr int root = fields_of(kind).root, count = fields_of(kind).count;
  Call call;
  if (skips()) return call;
  const std::tuple<A...> all(a...);
  call.kind = base(kind), call.communicator = uncertain_id;
  Communicator* const where = communicator(comm);
  if (!where) return call;
  if (where->between) {  // root and size differ between its sides
    where->next(call);
    return call;
  }
  if constexpr (root >= 0) call.root = std::get<root>(all);
  const bool at_root = root >= 0 && where->shared && where->shared->rank == call.root;
  if constexpr (count >= 0) {
    constexpr int at_the_root = root == 6 ? 5 - count : count;  // of a gather or scatter
    // Not all arguments count on all ranks of an intercommunicator.
    if (root < 0 || !(where->id & uncertain_id))
      call.bytes = at_root ? bytes_of(std::get<at_the_root>(all), std::get<at_the_root + 1>(all))
                           : bytes_of(std::get<count>(all), std::get<count + 1>(all));
  }
  if constexpr (root >= 0) {  // all wait for the root, or the root for all
    call.gives = at_root == (named<kind>("", "cast") || named<kind>("", "catter") || named<kind>("", "catterv"));
    call.waits = !call.gives;
  } else if constexpr (named<kind>("", "scan")) {
    call.gives = call.waits = false;
  }
  where->next(call);
  if constexpr (named<kind>("", "atherv") || named<kind>("", "eighbor_allgather"))
    pieces<1, 2, 4, named<kind>("", "v") ? 6 : 5>(comm, *where, call, all);
  else if constexpr (named<kind>("", "catterv"))
    pieces<1, 3, 5, 6>(comm, *where, call, all);
  else if constexpr (named<kind>("", "eighbor_alltoall"))
    pieces<1, 2, 4, 5>(comm, *where, call, all);
  else if constexpr (named<kind>("", "lltoallv") || named<kind>("", "lltoallw"))
    pieces<1, 3, 5, 7>(comm, *where, call, all);
  return call;
}

template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::collective) INLINE int wrapped(A... a) {
  const std::tuple<A...> all(a...);
  constexpr std::size_t last = sizeof...(A) - 1;
  constexpr bool persists = named<kind>("", "_init");
  constexpr bool starts = std::is_same_v<decltype(std::get<last>(all)), MPI_Request* const&>;
  const MPI_Comm comm = std::get<last - starts - persists>(all);
  Call call = in_turn<kind>(comm, a...);
  const int result = next_inside<kind, int>(call, a...);
  used(call, comm, result);
  if constexpr (starts) {
    if (result != MPI_SUCCESS || call.kind == Kind::none) return result;
    const std::uintptr_t request = value_of(*std::get<last>(all));
    if constexpr (!persists) {
      start(request, call);
    } else if (const Communicator* const where = communicator(comm)) {
      // Each start counts as a collective, in a communicator of its request. This call counts as one in `comm`.
      call.communicator = add_like(*where, request, call).id;
      const std::lock_guard lock(persistent_mutex);
      persistent()[request] = call;
    }
  }
  return result;
}

// A new communicator: its id is made of its parent's, of the number of the call that made it, and of its members. Or a
// window or file, which has the members of its communicator.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::create) INLINE int wrapped(A... a) {
  const std::tuple<A...> all(a...);
  constexpr bool starts = kind == Kind::MPI_Comm_idup;
  constexpr Sort sort = named<kind>("MPI_File", "")  ? Sort::file
                        : named<kind>("MPI_Win", "") ? Sort::window
                                                     : Sort::communicator;
  const MPI_Comm comm = std::get<fields_of(kind).communicator>(all);
  const Call call = in_turn<kind>(comm);
  const int result = next_inside<kind, int>(call, a...);
  used(call, comm, result);
  if (result != MPI_SUCCESS || call.kind == Kind::none) return result;
  const auto made = *std::get<sizeof...(A) - 1 - starts>(all);
  if constexpr (starts || sort != Sort::communicator) {
    if (const Communicator* const where = communicator(comm))
      add_like(*where, value_of(made), call, sort, starts ? nullptr : site_of(PLACE_OF_SITE));
  } else if (made != null_communicator()) {
    add_communicator(made, mix(call.communicator, call.sequence) | (call.communicator & uncertain_id));
  }
  if constexpr (starts) start(value_of(*std::get<sizeof...(A) - 1>(all)), call);
  return result;
}

// MPI_Intercomm_create: its leaders exchange a message.
template <Kind kind>
requires(fields_of(kind).wrapper == Wrapper::join) INLINE
    int wrapped(MPI_Comm local, int leader, MPI_Comm world_of_leaders, int other, int tag, MPI_Comm* made) {
  Call call;
  if (Communicator* const where = skips() ? nullptr : communicator(local)) {
    call = {.kind = kind, .tag = tag, .root = leader};
    if (where->shared && where->shared->rank == leader)
      if (const Communicator* const of_leaders = communicator(world_of_leaders))
        call.peer = of_leaders->world_rank(other);
    where->next(call);
    count_sent({.kind = kind, .peer = call.peer, .tag = tag, .communicator = leaders_id});
  }
  const int result = next_inside<kind, int>(call, local, leader, world_of_leaders, other, tag, made);
  used(call, local, result);
  if (result == MPI_SUCCESS && call.kind != Kind::none)
    add_communicator(*made, mix(leaders_id, static_cast<std::uint64_t>(tag)), true);
  return result;
}

// A communicator that its members alone make: they are known before it.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::form) INLINE int wrapped(A... a) {
  const std::tuple<A...> all(a...);
  constexpr bool of_world =
      std::is_same_v<std::tuple_element_t<sizeof...(A) - 2, std::tuple<A...>>, int> && sizeof...(A) == 4;
  const MPI_Group group = std::get < of_world ? 1 : 0 > (all);
  int rank = -1;
  Call call;
  Communicator* made = nullptr;
  if (!skips()) PMPI_Group_rank(group, &rank);
  if (rank >= 0) {
    std::vector<std::int32_t> members = world_ranks(group);
    std::uint64_t id = 6;
    if constexpr (of_world) {
      call.tag = std::get<2>(all);
      id = mix(id, static_cast<std::uint64_t>(call.tag));
    } else {
      for (const char c : std::string_view(std::get<1>(all))) id = mix(id, static_cast<std::uint64_t>(c));
    }
    Pieces all_of_them;
    for (const std::int32_t one : members) all_of_them.emplace_back(one, 0);
    call.kind = kind;
    call.communicator = numbered(with_members(id, members));
    keep_pieces(call, all_of_them, {});
    made = &add(call.communicator, call.communicator, static_cast<int>(members.size()), rank, std::move(members));
  }
  const int result = next_inside<kind, int>(call, a...);
  if (made && result == MPI_SUCCESS) rename(*made, value_of(*std::get<sizeof...(A) - 1>(all)));
  if (made && result != MPI_SUCCESS) forget(call.communicator), record()->failed.store(call);
  return result;
}

// A handle, or that behind a pointer.
template <int place, class... A>
std::uintptr_t handle_in(const std::tuple<A...>& all) {
  const auto one = std::get<place>(all);
  using One = std::remove_const_t<decltype(one)>;
  if constexpr (std::is_same_v<One, MPI_Win*> || std::is_same_v<One, MPI_File*> || std::is_same_v<One, MPI_Comm*>)
    return one ? value_of(*one) : 0;
  else
    return value_of(one);
}

// A collective of a window or file.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::ordered) INLINE int wrapped(A... a) {
  const std::tuple<A...> all(a...);
  constexpr std::size_t last = sizeof...(A) - 1;
  constexpr bool starts = named<kind>("MPI_File_i", "");
  const std::uintptr_t handle = handle_in<fields_of(kind).object>(all);
  Call call;
  if (Communicator* const where = skips() ? nullptr : find(handle)) call.kind = base(kind), where->next(call);
  const int result = next_inside<kind, int>(call, a...);
  if (result != MPI_SUCCESS) keep_error(call);
  if constexpr (starts)
    if (result == MPI_SUCCESS) start(value_of(*std::get<last>(all)), call);
  if constexpr (named<kind>("", "_free") || named<kind>("", "_close"))
    if (result == MPI_SUCCESS) forget(handle);
  return result;
}

// Other calls that may wait, of a window, file or communicator, or of none, for a rank or for none.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::single) INLINE int wrapped(A... a) {
  constexpr int object = fields_of(kind).object, peer = fields_of(kind).peer;
  const std::tuple<A...> all(a...);
  Call call{.kind = skips() ? Kind::none : base(kind)};
  [[maybe_unused]] std::uintptr_t handle = 0, lock = 0;
  [[maybe_unused]] Communicator* where = nullptr;
  if constexpr (object >= 0) {
    handle = handle_in<object>(all);
    where = call.kind == Kind::none ? nullptr : find(handle);
    call.communicator = where ? where->id : uncertain_id;
    if constexpr (peer >= 0) call.peer = where ? where->world_rank(std::get<peer>(all)) : unknown;
    lock = mix(handle, static_cast<std::uint64_t>(call.peer)) | uncertain_id;  // no request has such a value
  }
  if constexpr (fields_of(kind).polls) {
    constexpr bool reads = named<kind>("MPI_Get", "") || named<kind>("MPI_Fetch", "") || named<kind>("MPI_Comp", "");
    bool changes = false;  // what it reads, as a counter of tasks
    if constexpr (named<kind>("MPI_Fetch", "") || named<kind>("", "_accumulate"))
      changes = std::get<object - 1>(all) != no_op() && std::get<object - 1>(all) != replace();
    if constexpr (!reads)
      call.receive_tag = 0;
    else if (!changes)
      call.receive_tag = static_cast<std::int32_t>(mix(1, std::get<peer + 1>(all)) >> 33 | 1);
  }
  if constexpr (kind == Kind::MPI_Win_lock) call.root = std::get<0>(all) == MPI_LOCK_EXCLUSIVE;
  if (where && kind == Kind::MPI_Win_complete)
    for (const std::int32_t one : where->started)
      count_sent({.peer = one, .tag = complete_tag, .communicator = call.communicator});
  if constexpr (kind == Kind::MPI_Win_start || kind == Kind::MPI_Win_post) {
    const auto group = where ? world_ranks(std::get<0>(all)) : std::vector<std::int32_t>();
    for (const std::int32_t one : group)
      kind == Kind::MPI_Win_post ? count_sent({.peer = one, .tag = post_tag, .communicator = call.communicator})
                                 : count_received(call.communicator, one, post_tag);
    if (where && kind == Kind::MPI_Win_start) where->started = group;
  }
  int message = -1;
  if constexpr (named<kind>("", "Mrecv"))
    if (const MPI_Message* const taken = std::get<3>(all)) message = request_number(value_of(*taken));
  const int result = next_inside<kind, int>(call, a...);
  if (call.kind == Kind::none) return result;
  if (result != MPI_SUCCESS) {
    keep_error(call);
    return result;
  }
  complete(message);
  if constexpr (named<kind>("", "_lock") || named<kind>("", "_lock_all")) start(lock, call);
  if constexpr (named<kind>("", "_unlock") || named<kind>("", "_unlock_all")) complete(request_number(lock));
  if constexpr (named<kind>("", "_free") || named<kind>("", "_disconnect")) forget(handle);
  return result;
}

// A communicator with new processes, which are not seen. The root knows their command, or the first one.
const char* command_of(const char* command, char**) { return command; }
const char* command_of(int, char** commands) { return *commands; }
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::spawn) INLINE int wrapped(A... a) {
  const std::tuple<A...> all(a...);
  Call call{.kind = skips() ? Kind::none : kind};
  Communicator* made = nullptr;
  const Communicator* const where =
      call.kind == Kind::none ? nullptr : communicator(std::get<fields_of(kind).communicator>(all));
  if (where && where->shared) {
    call.communicator = numbered(mix(where->id, 7)) | uncertain_id;
    made = &add(call.communicator, call.communicator, where->shared->size, where->shared->rank, {unknown},
                Sort::spawned, 1);
    if (where->shared->rank == std::get<fields_of(kind).root>(all)) {
      const char* const command = command_of(std::get<0>(all), std::get<1>(all));
      const char* const slash = command ? std::strrchr(command, '/') : nullptr;
      set_name(made, slash ? slash + 1 : command);
    }
  }
  const int result = next_inside<kind, int>(call, a...);
  if (result != MPI_SUCCESS)
    keep_error(call), forget(call.communicator);
  else if (made)
    rename(*made, value_of(*std::get<sizeof...(A) - 2>(all)));
  return result;
}

template <Kind kind, class Object>
requires(fields_of(kind).wrapper == Wrapper::name) INLINE int wrapped(Object object, const char* name) {
  Communicator* named = off() ? nullptr : find(value_of(object));
  if constexpr (kind == Kind::MPI_Comm_set_name) named = off() ? nullptr : communicator(object);
  set_name(named, name);
  return next<kind, int>(object, name);
}

// The functions of attributes may make calls inside of others.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::attribute) INLINE int wrapped(A... a) {
  if (!off()) record()->callbacks = true;
  return next<kind, int>(a...);
}

// All who start or end MPI.
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::everyone) INLINE int wrapped(A... a) {
  constexpr bool starts = kind != Kind::MPI_Finalize;
  if (!starts) --running;
#ifdef OPEN_MPI
  constexpr const char *own = "Open MPI", *other = "another MPI";
#else
  constexpr const char *own = "MPICH", *other = "Open MPI";
#endif
  if (record() && (open_mpi_handle("ompi_mpi_comm_world") != nullptr) != (own[0] == 'O')) {
    std::fprintf(stderr,
                 "who_waits: started for %s, but the program has loaded %s: start it with the mpirun of its MPI\n", own,
                 other);
    ::_exit(2);
  }
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
      int level = MPI_THREAD_SINGLE;
      PMPI_Query_thread(&level);
      ours->of_many_threads = level >= MPI_THREAD_SERIALIZED;
      ++running;
    } else {
      ours->finalized = running == 0;
    }
  }
  return result;
}

#if MPI_VERSION >= 4
template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::session) INLINE int wrapped(A... a) {
  constexpr bool starts = kind == Kind::MPI_Session_init;
  const bool first = starts ? running.fetch_add(1) == 0 : running.fetch_sub(1) == 1;
  const int result = next_inside<kind, int>({.kind = kind}, a...);
  Record* const ours = record();
  if (!ours || result != MPI_SUCCESS || inside()) return result;
  if constexpr (starts) {
    if (!first) return result;
    int rank = -1, size = 0;
    MPI_Group all;
    if (PMPI_Group_from_session_pset(*std::get<2>(std::tuple(a...)), "mpi://WORLD", &all) != MPI_SUCCESS) return result;
    PMPI_Group_rank(all, &rank), PMPI_Group_size(all, &size);
    of_sessions = all;
    ours->rank = rank, ours->world_size = size, ours->of_many_threads = true;
  } else {
    ours->finalized = first;
  }
  return result;
}
#endif

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
#define SECOND_NAME(name) extern decltype(name) P##name __attribute__((alias(#name)));
#define ONLY_OF_THIS_MPI
#define CALL(name, parameters) WRAP(name, parameters) SECOND_NAME(name)
#if MPI_VERSION >= 4
#define CALL_C(name, parameters) CALL(name, parameters) WRAP_LARGE(name, parameters) SECOND_NAME(name##_c)
#endif
#include "calls.inc"

int MPI_Request_free(MPI_Request* request) {
  if (request) {  // a receive without a wait gets its message at an unknown time
    if (role_of(complete(request_number(value_of(*request))).kind) == Role::receive) record()->unknown_calls = true;
    forget(value_of(*request));  // of a persistent collective
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
  for (std::size_t i = 1; i < calls.size(); ++i) meet(calls[i]);
  return REAL(MPI_Startall)(count, requests);
}
int MPI_Cancel(MPI_Request* request) {
  const int number = request ? request_number(value_of(*request)) : -1;
  if (number >= 0) cancelled[static_cast<std::size_t>(number)] = true;
  return REAL(MPI_Cancel)(request);
}
// As IPM and mpiP read it: 1 begins and -1 ends the region that a second argument names. It may be missing.
int MPI_Pcontrol(const int level, ...) {
  std::va_list rest;
  va_start(rest, level);
  const char* const name = level == 1 || level == -1 ? va_arg(rest, const char*) : nullptr;
  va_end(rest);
  mark_region(level == 1, name);
  return REAL(MPI_Pcontrol)(level, name);
}

SECOND_NAME(MPI_Request_free)
SECOND_NAME(MPI_Start)
SECOND_NAME(MPI_Startall)
SECOND_NAME(MPI_Cancel)
SECOND_NAME(MPI_Pcontrol)
}
