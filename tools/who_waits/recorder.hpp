// recorder.hpp: the preloaded library's side of a Record: what the wrappers of MPI, NCCL and CUDA call.
#pragma once

#include "record.hpp"

#include <dlfcn.h>
#include <boost/preprocessor/arithmetic/dec.hpp>
#include <boost/preprocessor/arithmetic/inc.hpp>
#include <boost/preprocessor/repetition/enum.hpp>
#include <boost/preprocessor/repetition/enum_params.hpp>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace who_waits {

// This process's record, claimed by the first call; nullptr if who_waits did not start the process, or another process
// of the same rank claimed it before.
Record* record();
bool inside();                                       // this thread is inside a recorded call
inline bool off() { return !record() || inside(); }  // then the wrappers do nothing else than their call

// A communicator of the program: its handle's value, its record, and for each of its ranks the one in MPI_COMM_WORLD.
struct Communicator {
  std::uintptr_t handle = 0;
  std::uint64_t id = 0;
  std::vector<std::int32_t> world_ranks{};  // empty: the communicator's own ranks
  CommunicatorRecord* shared = nullptr;
  bool between = false;                 // an intercommunicator: world_ranks are those of the other side
  std::vector<std::int32_t> started{};  // of a window: the group of MPI_Win_start

  std::int32_t world_rank(int peer) const {
    if (peer < 0 || world_ranks.empty()) return peer;
    return static_cast<std::size_t>(peer) < world_ranks.size() ? world_ranks[static_cast<std::size_t>(peer)] : unknown;
  }
  // A collective starts: gives it its number, and keeps it in the history.
  void next(Call& call);
};
// The communicator with this handle; nullptr: add() it. Thread-safe; the pointer is valid until forget().
Communicator* find(std::uintptr_t handle);
Communicator* with_id(std::uint64_t id);
Communicator& add(std::uintptr_t handle, std::uint64_t id, int size, int rank, std::vector<std::int32_t> world_ranks,
                  Sort sort = Sort::communicator, int side = -1, const void* site = nullptr);
void rename(Communicator& one, std::uintptr_t handle);  // it has this handle now
void forget(std::uintptr_t handle);
void set_name(Communicator* one, const char* name);  // nullptr: nothing happens

std::uint64_t mix(std::uint64_t seed, std::uint64_t value);  // a hash

// Where the program called a wrapper, whose return address is at `place`. MPI's functions for Fortran are passed over.
const void* site_of(const void* const* place);
#define PLACE_OF_SITE (static_cast<const void* const*>(__builtin_frame_address(0)) + 1)

// Records, while it lives, that this thread is inside a call. Calls inside calls are not recorded, such as those that a
// library's collective makes.
class Inside {
 public:
  explicit Inside(const Call& call, const void* const* place_of_site = PLACE_OF_SITE);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  // The call waits for these requests, by request_number().
  void waits_for(std::span<const int> requests);

 private:
  ThreadRecord* thread_ = nullptr;
  std::uint64_t step_ = 1;  // of its turn
};

// Messages of a call, for the counts that tell whether a message was sent. Peers are ranks in MPI_COMM_WORLD. They
// return the number of the message's meeting.
std::uint64_t count_sent(const Call& call);
std::uint64_t count_received(std::uint64_t communicator, std::int32_t peer, std::int32_t tag, bool by_any = false);

// For --timeline: the call that this thread is inside is at this meeting of a communicator; number 0: at none.
void meet(Meeting meeting, std::uint64_t communicator);
void meet(const Call& call);  // at the one that the call itself has

// For --timeline: this thread begins or ends a region. `name` may point to anything, because MPI_Pcontrol needs no
// name: then nothing happens. An end without a pointer ends the region that began last.
void mark_region(bool begins, std::optional<const char*> name = {});

// Operations under way.
void start(std::uintptr_t request, const Call& call);
int request_number(std::uintptr_t request);  // -1: not recorded
Call started(int number);
Call complete(int number);  // returns what was started; Kind::none: it was not under way

// A test or a probe that found nothing.
void poll(const Call& call);

// Templates that make an Inside are INLINE, because it asks who called them.
#define INLINE __attribute__((always_inline)) inline

// What the program would find under this name; also in a library that was loaded for one module alone, as Python loads
// MPI.
void* symbol(const char* name);
template <class Function>
Function* real(const char* name, const char* before = "", const char* behind = "") {
  char all[64];  // no std::string: its functions would be exported
  std::snprintf(all, sizeof all, "%s%s%s", before, name, behind);
  return reinterpret_cast<Function*>(symbol(all));
}

template <Kind kind, class Result, class... A>
INLINE Result next(A... a) {
  static auto* const function =
      real<Result(A...)>(name_of(kind), name_of(kind)[0] == 'M' ? "P" : "", kind == base(kind) ? "" : "_c");
  return function(a...);
}
// Calls it inside `call`.
template <Kind kind, class Result, class... A>
INLINE Result next_inside(const Call& call, A... a) {
  const Inside in(call);
  return next<kind, Result>(a...);
}

template <class R, class... A>
struct Signature {
  using Result = R;
  using Arguments = std::tuple<A...>;
};
template <class R, class... A>
Signature<R, A...> signature(R(A...));

}  // namespace who_waits

// WRAP(MPI_Send, 6) defines MPI_Send, which has 6 parameters, as wrapped<Kind::MPI_Send>.
#define WRAP_AS(name, kind, parameters)                                                \
  decltype(signature(name))::Result name(BOOST_PP_ENUM(parameters, PARAMETER, name)) { \
    return wrapped<kind>(BOOST_PP_ENUM_PARAMS(parameters, a));                         \
  }
#define WRAP(name, parameters) WRAP_AS(name, Kind::name, parameters)
#define WRAP_LARGE(name, parameters) WRAP_AS(name##_c, large(Kind::name), parameters)
#define PARAMETER(z, i, name) std::tuple_element_t<i, decltype(signature(name))::Arguments> a##i
