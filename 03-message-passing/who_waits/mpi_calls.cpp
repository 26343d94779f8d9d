// The wrappers of MPI's calls, for programs in C, C++ and Fortran: MPICH's Fortran calls MPI_Send, Open MPI's
// PMPI_Send, so each wrapper has both names. They must refer to none of MPI's data, such as Open MPI's MPI_COMM_WORLD,
// because the library is also loaded into processes without MPI, such as a shell that starts the program.
#include "recorder.hpp"

#include <mpi.h>
#include <boost/container/small_vector.hpp>

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

// mpi.h promises that some pointers are not NULL, or marks old calls; the wrappers only pass them on.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace who_waits {

namespace {

#ifdef OPEN_MPI
template <class Handle>
Handle data(const char* name) {
  return static_cast<Handle>(::dlsym(RTLD_DEFAULT, name));
}
MPI_Comm world() {
  static const auto handle = data<MPI_Comm>("ompi_mpi_comm_world");
  return handle;
}
MPI_Comm null_communicator() {
  static const auto handle = data<MPI_Comm>("ompi_mpi_comm_null");
  return handle;
}
#else
MPI_Comm world() { return MPI_COMM_WORLD; }
MPI_Comm null_communicator() { return MPI_COMM_NULL; }
#endif

template <class Handle>
std::uintptr_t value_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>)
    return reinterpret_cast<std::uintptr_t>(handle);
  else
    return static_cast<std::uintptr_t>(static_cast<unsigned>(handle));
}

std::uint64_t bytes_of(std::int64_t count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return count < 0 || size < 0 ? 0 : static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(size);
}

Communicator& add_communicator(MPI_Comm handle, std::uint64_t id) {
  int rank = 0, size = 0, between = 0;
  PMPI_Comm_rank(handle, &rank);
  PMPI_Comm_test_inter(handle, &between);
  std::vector<std::int32_t> world_ranks;
  if (id != world_id) {
    MPI_Group ours, all;
    if (between) {
      PMPI_Comm_remote_group(handle, &ours);
      id |= uncertain_id;
    } else {
      PMPI_Comm_group(handle, &ours);
    }
    PMPI_Comm_group(world(), &all);
    PMPI_Group_size(ours, &size);
    std::vector<int> numbers(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) numbers[static_cast<std::size_t>(i)] = i;
    world_ranks.resize(numbers.size());
    PMPI_Group_translate_ranks(ours, size, numbers.data(), all, world_ranks.data());
    for (std::int32_t& one : world_ranks) {
      if (one < 0) one = unknown;
      id = mix(id & ~uncertain_id, static_cast<std::uint64_t>(one)) | (id & uncertain_id);
    }
    PMPI_Group_free(&ours);
    PMPI_Group_free(&all);
  } else {
    PMPI_Comm_size(handle, &size);
  }
  return add(value_of(handle), id, size, rank, std::move(world_ranks));
}

Communicator& communicator(MPI_Comm handle) {
  if (Communicator* const known = find(value_of(handle))) return *known;
  return add_communicator(handle, handle == world() ? world_id : uncertain_id);
}

// Without a record the wrappers do nothing else than their call.
bool off() { return !record() || inside(); }

Call message(Kind kind, std::int64_t count, MPI_Datatype type, int peer, int tag, MPI_Comm handle) {
  if (off()) return {};
  const Communicator& where = communicator(handle);
  Call call{.kind = kind, .peer = where.world_rank(peer), .tag = tag, .communicator = where.id};
  if (peer == MPI_ANY_SOURCE) call.peer = any;
  if (peer == MPI_PROC_NULL) call.peer = no_rank;
  if (tag == MPI_ANY_TAG) call.tag = any;
  if (count >= 0) call.bytes = bytes_of(count, type);
  if (role_of(kind) == Role::send) call.meeting = count_sent(call);
  static std::atomic<std::uint64_t> receives{
      0};  // posted receives get the messages that fit in the order of their numbers
  if (kind == Kind::MPI_Irecv || kind == Kind::MPI_Recv_init)
    call.sequence = receives.fetch_add(1, std::memory_order_relaxed) + 1;
  return call;
}

Call both(Kind kind, std::int64_t count, MPI_Datatype type, int to, int tag, int from, int receive_tag,
          MPI_Comm handle) {
  if (off()) return {};
  Call call = message(kind, count, type, to, tag, handle);
  call.meeting = count_sent(call);
  const Call in = message(Kind::MPI_Recv, -1, type, from, receive_tag, handle);
  call.receive_peer = in.peer;
  call.receive_tag = in.tag;
  return call;
}

Call collective(Kind kind, MPI_Comm handle, int root = no_rank, std::int64_t count = 0, MPI_Datatype type = {}) {
  if (off()) return {};
  Call call{.kind = kind, .root = root};
  if (count > 0) call.bytes = bytes_of(count, type);
  Communicator& where = communicator(handle);
  if (!record()->timed.load(std::memory_order_relaxed)) return where.next(call);
  const std::string_view name = name_of(kind);
  if (root >= 0) {  // all wait for the root, or the root for all
    const bool at_root = where.shared && where.shared->rank == root;
    call.gives = at_root == (name.find("cast") != name.npos || name.find("catter") != name.npos);
    call.waits = !call.gives;
  } else if (name.ends_with("scan")) {
    call.gives = call.waits = false;
  }
  return where.next(call);
}

// All who start or end MPI: the ranks of MPI_COMM_WORLD.
Call everyone(Kind kind, std::uint64_t id) { return {.kind = kind, .communicator = id, .sequence = 1}; }

void started_mpi() {
  Record* const ours = record();
  if (!ours) return;
  int rank = 0, size = 0;
  PMPI_Comm_rank(world(), &rank);
  PMPI_Comm_size(world(), &size);
  communicator(world());
  ours->world_size = size;
  ours->rank = rank;
}

// A receive has got its message. Source and tag of its own call are enough unless they are wildcards.
void received(const Call& call, const MPI_Status& status, MPI_Comm handle = {}) {
  if (call.kind == Kind::none) return;
  std::int32_t peer = call.from();
  if (peer == any && handle != MPI_Comm{}) peer = communicator(handle).world_rank(status.MPI_SOURCE);
  if (peer == any) {
    record()->unknown_calls = true;
    return;
  }
  const int tag = call.wanted_tag() == any ? status.MPI_TAG : call.wanted_tag();
  meet(count_received(call.communicator, peer, tag), true, true);
}

// Where a call puts its status, even if the program wants none.
class Status {
 public:
  explicit Status(MPI_Status* wanted) : used_(wanted == MPI_STATUS_IGNORE ? &own_ : wanted) {}
  MPI_Status* get() const { return used_; }

 private:
  MPI_Status own_{};
  MPI_Status* used_;
};

bool is_communicator(MPI_Comm handle) { return handle != null_communicator(); }

// A new communicator: its id is made of its parent's, of the number of the call that made it, and of its members.
void created(const Call& call, MPI_Comm handle) {
  if (call.kind != Kind::none && is_communicator(handle))
    add_communicator(handle, mix(call.communicator, call.sequence) | (call.communicator & uncertain_id));
}

// The communicators of receives with wildcards, by request: their statuses have ranks of the communicator.
MPI_Comm* communicator_of_request(int number) {
  static std::array<MPI_Comm, std::tuple_size_v<decltype(Record::requests)>> handles{};
  return &handles[static_cast<std::size_t>(number)];
}

void begin(MPI_Request request, const Call& call, MPI_Comm handle) {
  if (call.kind == Kind::none) return;
  start(value_of(request), call);
  if (const int number = request_number(value_of(request)); number >= 0) *communicator_of_request(number) = handle;
}

void end(int number, const MPI_Status& status) {
  if (number < 0) return;
  const Call call = started(number);
  const MPI_Comm handle = *communicator_of_request(number);
  if (!complete(number)) return;
  if (role_of(call.kind) == Role::receive) received(call, status, handle);
  if (role_of(call.kind) == Role::collective) meet(call.meeting, false, call.waits);
}

// Persistent requests: what each MPI_Start starts.
struct Persistent {
  struct Init {
    Kind kind;
    int count;
    MPI_Datatype type;
    int peer, tag;
    MPI_Comm comm;
  };
  std::mutex mutex;
  std::map<std::uintptr_t, Init> all;
};
Persistent& persistent() {
  static auto* const them = new Persistent;
  return *them;
}
Call restart(MPI_Request request) {
  if (off()) return {};
  const std::lock_guard lock(persistent().mutex);
  const auto found = persistent().all.find(value_of(request));
  if (found == persistent().all.end()) {  // of a collective
    record()->unknown_calls = true;
    return {};
  }
  const auto& [kind, count, type, peer, tag, comm] = found->second;
  const Call call = message(kind, count, type, peer, tag, comm);
  begin(request, call, comm);
  return call;
}

// The requests of a wait or a test, and statuses for them, because a receive with wildcards needs its own.
class Waited {
 public:
  Waited(int count, const MPI_Request* requests, MPI_Status* statuses) : statuses_(statuses) {
    if (off()) return;
    for (const MPI_Request request : std::span(requests, static_cast<std::size_t>(count < 0 ? 0 : count)))
      numbers.push_back(request_number(value_of(request)));
    if (statuses == MPI_STATUSES_IGNORE) own_.resize(numbers.size());
  }
  MPI_Status* statuses() { return own_.empty() ? statuses_ : own_.data(); }
  void ended(int at, int status) {
    if (static_cast<std::size_t>(at) < numbers.size()) end(numbers[static_cast<std::size_t>(at)], statuses()[status]);
  }
  void all_ended() {
    for (int i = 0; i < static_cast<int>(numbers.size()); ++i) ended(i, i);
  }
  void found_nothing() const {
    for (const int number : numbers)
      if (number >= 0) return poll(started(number));
  }
  boost::container::small_vector<int, 16> numbers;  // a few without memory from the heap

 private:
  boost::container::small_vector<MPI_Status, 16> own_;
  MPI_Status* statuses_;
};

// MPI's own function.
#define REAL(name)                   \
  ([] {                              \
    NEXT(decltype(name), "P" #name); \
    return next;                     \
  }())
std::string profiled(Kind kind) { return std::string("P") + name_of(kind); }

template <Kind kind>
INLINE int send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  NEXT(int(const void*, int, MPI_Datatype, int, int, MPI_Comm), profiled(kind).c_str());
  const Inside in(message(kind, count, type, to, tag, comm));
  return next(data, count, type, to, tag, comm);
}

template <Kind kind, class Data>
INLINE int start_message(Data data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  NEXT(int(Data, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*), profiled(kind).c_str());
  const Call call = message(kind, count, type, peer, tag, comm);
  const Inside in(call);
  const int result = next(data, count, type, peer, tag, comm, request);
  begin(*request, call, comm);
  return result;
}

template <Kind kind, class Data>
INLINE int persistent_message(Data data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                              MPI_Request* request) {
  NEXT(int(Data, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*), profiled(kind).c_str());
  const int result = next(data, count, type, peer, tag, comm, request);
  const std::lock_guard lock(persistent().mutex);
  persistent().all[value_of(*request)] = {kind, count, type, peer, tag, comm};
  return result;
}

// `root` and `count`: the places of these arguments, -1 for none. The type is behind the count.
template <Kind kind, int root, int count, class... A>
INLINE int any_collective(A... all) {
  NEXT(int(A...), profiled(kind).c_str());
  using All = std::tuple<A...>;
  const All arguments(all...);
  constexpr std::size_t last = sizeof...(A) - 1;
  constexpr bool starts = std::is_same_v<std::tuple_element_t<last, All>, MPI_Request*>;
  const MPI_Comm comm = std::get<last - starts>(arguments);
  int at_root = no_rank, so_many = 0;
  MPI_Datatype type{};
  if constexpr (root >= 0) at_root = std::get<root>(arguments);
  if constexpr (count >= 0) so_many = std::get<count>(arguments), type = std::get<count + 1>(arguments);
  const Call call = collective(kind, comm, at_root, so_many, type);
  const Inside in(call);
  const int result = next(all...);
  if constexpr (starts) begin(*std::get<last>(arguments), call, comm);
  return result;
}

template <Kind kind, class... A>
INLINE int create(MPI_Comm comm, A... all) {
  NEXT(int(MPI_Comm, A...), profiled(kind).c_str());
  const Call call = collective(kind, comm);
  int result;
  {
    const Inside in(call);
    result = next(comm, all...);
  }
  if (result == MPI_SUCCESS) created(call, *std::get<sizeof...(A) - 1>(std::tuple(all...)));
  return result;
}

}  // namespace

}  // namespace who_waits

using namespace who_waits;

#pragma GCC visibility push(default)
extern "C" {

int MPI_Init(int* argc, char*** argv) {
  int result;
  {
    const Inside in(everyone(Kind::MPI_Init, start_id));
    result = REAL(MPI_Init)(argc, argv);
  }
  started_mpi();
  return result;
}
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  int result;
  {
    const Inside in(everyone(Kind::MPI_Init_thread, start_id));
    result = REAL(MPI_Init_thread)(argc, argv, required, provided);
  }
  started_mpi();
  return result;
}
int MPI_Finalize() {
  const Inside in(everyone(Kind::MPI_Finalize, end_id));
  const int result = REAL(MPI_Finalize)();
  if (Record* const ours = record()) ours->finalized = true;
  return result;
}

WRAP(6, MPI_Send, send)
WRAP(6, MPI_Ssend, send)
WRAP(6, MPI_Bsend, send)
WRAP(6, MPI_Rsend, send)
WRAP(7, MPI_Isend, start_message)
WRAP(7, MPI_Issend, start_message)
WRAP(7, MPI_Ibsend, start_message)
WRAP(7, MPI_Irsend, start_message)
WRAP(7, MPI_Irecv, start_message)
WRAP(7, MPI_Send_init, persistent_message)
WRAP(7, MPI_Ssend_init, persistent_message)
WRAP(7, MPI_Bsend_init, persistent_message)
WRAP(7, MPI_Rsend_init, persistent_message)
WRAP(7, MPI_Recv_init, persistent_message)

int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const Call call = message(Kind::MPI_Recv, count, type, from, tag, comm);
  const Inside in(call);
  const Status used(status);
  const int result = REAL(MPI_Recv)(data, count, type, from, tag, comm, used.get());
  received(call, *used.get(), comm);
  return result;
}
int MPI_Sendrecv(const void* data, int count, MPI_Datatype type, int to, int tag, void* in_data, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status* status) {
  const Call call = both(Kind::MPI_Sendrecv, count, type, to, tag, from, in_tag, comm);
  const Inside in(call);
  const Status used(status);
  const int result =
      REAL(MPI_Sendrecv)(data, count, type, to, tag, in_data, in_count, in_type, from, in_tag, comm, used.get());
  received(call, *used.get(), comm);
  return result;
}
int MPI_Sendrecv_replace(void* data, int count, MPI_Datatype type, int to, int tag, int from, int in_tag, MPI_Comm comm,
                         MPI_Status* status) {
  const Call call = both(Kind::MPI_Sendrecv_replace, count, type, to, tag, from, in_tag, comm);
  const Inside in(call);
  const Status used(status);
  const int result = REAL(MPI_Sendrecv_replace)(data, count, type, to, tag, from, in_tag, comm, used.get());
  received(call, *used.get(), comm);
  return result;
}
int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const Inside in(message(Kind::MPI_Probe, -1, {}, from, tag, comm));
  return REAL(MPI_Probe)(from, tag, comm, status);
}
int MPI_Iprobe(int from, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  const int result = REAL(MPI_Iprobe)(from, tag, comm, flag, status);
  const Call call = message(Kind::MPI_Iprobe, -1, {}, from, tag, comm);
  if (*flag)
    const Inside found(call);
  else
    poll(call);
  return result;
}
int MPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message* what, MPI_Status* status) {
  const Call call = message(Kind::MPI_Mprobe, -1, {}, from, tag, comm);
  const Inside in(call);
  const Status used(status);
  const int result = REAL(MPI_Mprobe)(from, tag, comm, what, used.get());
  received(call, *used.get(), comm);  // no other receive can get it from now on
  return result;
}
int MPI_Improbe(int from, int tag, MPI_Comm comm, int* flag, MPI_Message* what, MPI_Status* status) {
  const Status used(status);
  const int result = REAL(MPI_Improbe)(from, tag, comm, flag, what, used.get());
  const Call call = message(Kind::MPI_Improbe, -1, {}, from, tag, comm);
  if (*flag) {
    const Inside found(call);
    received(call, *used.get(), comm);
  } else {
    poll(call);
  }
  return result;
}

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  Waited waited(1, request, status);
  Inside in({.kind = Kind::MPI_Wait});
  in.waits_for({waited.numbers.data(), waited.numbers.size()});
  const int result = REAL(MPI_Wait)(request, waited.statuses());
  waited.all_ended();
  return result;
}
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status* statuses) {
  Waited waited(count, requests, statuses);
  Inside in({.kind = Kind::MPI_Waitall});
  in.waits_for({waited.numbers.data(), waited.numbers.size()});
  const int result = REAL(MPI_Waitall)(count, requests, waited.statuses());
  waited.all_ended();
  return result;
}
int MPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status) {
  Waited waited(count, requests, status);
  Inside in({.kind = Kind::MPI_Waitany});
  in.waits_for({waited.numbers.data(), waited.numbers.size()});
  const int result = REAL(MPI_Waitany)(count, requests, index, waited.statuses());
  if (*index != MPI_UNDEFINED) waited.ended(*index, 0);
  return result;
}
int MPI_Waitsome(int count, MPI_Request requests[], int* ended, int indices[], MPI_Status* statuses) {
  Waited waited(count, requests, statuses);
  Inside in({.kind = Kind::MPI_Waitsome});
  in.waits_for({waited.numbers.data(), waited.numbers.size()});
  const int result = REAL(MPI_Waitsome)(count, requests, ended, indices, waited.statuses());
  for (int i = 0; *ended != MPI_UNDEFINED && i < *ended; ++i) waited.ended(indices[i], i);
  return result;
}
int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  Waited waited(1, request, status);
  const int result = REAL(MPI_Test)(request, flag, waited.statuses());
  *flag ? waited.all_ended() : waited.found_nothing();
  return result;
}
int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status* statuses) {
  Waited waited(count, requests, statuses);
  const int result = REAL(MPI_Testall)(count, requests, flag, waited.statuses());
  *flag ? waited.all_ended() : waited.found_nothing();
  return result;
}
int MPI_Testany(int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status) {
  Waited waited(count, requests, status);
  const int result = REAL(MPI_Testany)(count, requests, index, flag, waited.statuses());
  if (!*flag) waited.found_nothing();
  if (*flag && *index != MPI_UNDEFINED) waited.ended(*index, 0);
  return result;
}
int MPI_Testsome(int count, MPI_Request requests[], int* ended, int indices[], MPI_Status* statuses) {
  Waited waited(count, requests, statuses);
  const int result = REAL(MPI_Testsome)(count, requests, ended, indices, waited.statuses());
  if (*ended == 0) waited.found_nothing();
  for (int i = 0; *ended != MPI_UNDEFINED && i < *ended; ++i) waited.ended(indices[i], i);
  return result;
}
int MPI_Request_free(MPI_Request* request) {
  complete(request_number(value_of(*request)));
  {
    const std::lock_guard lock(persistent().mutex);
    persistent().all.erase(value_of(*request));
  }
  return REAL(MPI_Request_free)(request);
}
int MPI_Start(MPI_Request* request) {
  const Inside in(restart(*request));
  return REAL(MPI_Start)(request);
}
int MPI_Startall(int count, MPI_Request requests[]) {
  std::vector<Call> calls;
  for (int i = 0; i < count; ++i) calls.push_back(restart(requests[i]));
  const Inside in(calls.empty() ? Call{} : calls[0]);
  for (std::size_t i = 1; i < calls.size(); ++i) meet(calls[i].meeting, true, false);
  return REAL(MPI_Startall)(count, requests);
}
int MPI_Cancel(MPI_Request* request) {
  if (Record* const ours = record()) ours->unknown_calls = true;
  return REAL(MPI_Cancel)(request);
}

// A collective and its form that returns at once: its number of arguments, and the places of root and count.
#define COLLECTIVES(count, one_more, name, I_name, root, at)             \
  WRAP_AS(count, MPI_##name, any_collective<Kind::MPI_##name, root, at>) \
  WRAP_AS(one_more, MPI_##I_name, any_collective<Kind::MPI_##I_name, root, at>)
// What ranks need not have equal, such as the counts of the v forms, is not given.
COLLECTIVES(1, 2, Barrier, Ibarrier, -1, -1)
COLLECTIVES(5, 6, Bcast, Ibcast, 3, 1)
COLLECTIVES(7, 8, Reduce, Ireduce, 5, 2)
COLLECTIVES(6, 7, Allreduce, Iallreduce, -1, 2)
COLLECTIVES(6, 7, Scan, Iscan, -1, 2)
COLLECTIVES(6, 7, Exscan, Iexscan, -1, 2)
COLLECTIVES(8, 9, Gather, Igather, 6, -1)
COLLECTIVES(9, 10, Gatherv, Igatherv, 7, -1)
COLLECTIVES(8, 9, Scatter, Iscatter, 6, -1)
COLLECTIVES(9, 10, Scatterv, Iscatterv, 7, -1)
COLLECTIVES(7, 8, Allgather, Iallgather, -1, 4)
COLLECTIVES(8, 9, Allgatherv, Iallgatherv, -1, -1)
COLLECTIVES(7, 8, Alltoall, Ialltoall, -1, 4)
COLLECTIVES(9, 10, Alltoallv, Ialltoallv, -1, -1)
COLLECTIVES(9, 10, Alltoallw, Ialltoallw, -1, -1)
COLLECTIVES(6, 7, Reduce_scatter, Ireduce_scatter, -1, -1)
COLLECTIVES(6, 7, Reduce_scatter_block, Ireduce_scatter_block, -1, 2)
WRAP(2, MPI_Comm_dup, create)
WRAP(4, MPI_Comm_split, create)
WRAP(5, MPI_Comm_split_type, create)
WRAP(3, MPI_Comm_create, create)
WRAP(6, MPI_Cart_create, create)
int MPI_Comm_free(MPI_Comm* comm) {
  forget(value_of(*comm));
  return REAL(MPI_Comm_free)(comm);
}
int MPI_Comm_disconnect(MPI_Comm* comm) {
  forget(value_of(*comm));
  return REAL(MPI_Comm_disconnect)(comm);
}
}

// Their second names.
#define X(name, ...) extern decltype(name) P##name __attribute__((alias(#name)));
#define Y(name, role)
extern "C" {
#include "calls.inc"
X(MPI_Request_free)
X(MPI_Start)
X(MPI_Startall)
X(MPI_Cancel)
X(MPI_Comm_free)
X(MPI_Comm_disconnect)
}
