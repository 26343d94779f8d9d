// recorder.hpp: the preloaded library's side of a Record: what the wrappers of MPI, NCCL and CUDA call.
#pragma once

#include "record.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace who_waits {

// This process's record, claimed by the first call; nullptr if who_waits did not start the process, or another process
// of the same rank claimed it before.
Record* record();

// A communicator of the program: its handle's value, its record, and for each of its ranks the one in MPI_COMM_WORLD.
struct Communicator {
  std::uintptr_t handle = 0;
  CommunicatorRecord* shared = nullptr;
  std::vector<std::int32_t> world_ranks;  // empty: the communicator's own ranks
  std::uint64_t id = 0, children = 0;

  std::int32_t world_rank(int peer) const {
    if (peer < 0 || world_ranks.empty()) return peer;
    return static_cast<std::size_t>(peer) < world_ranks.size() ? world_ranks[static_cast<std::size_t>(peer)] : unknown;
  }
  // A collective starts: returns it with its number, and keeps it in the history.
  Call next(Call call);
};
// The communicator with this handle; nullptr: add() it. Thread-safe; the pointer is valid until forget().
Communicator* find(std::uintptr_t handle);
Communicator& add(std::uintptr_t handle, std::uint64_t id, int size, int rank, std::vector<std::int32_t> world_ranks,
                  bool of_nccl = false);
void forget(std::uintptr_t handle);

std::uint64_t mix(std::uint64_t seed, std::uint64_t value);  // a hash

// Records, while it lives, that this thread is inside a call. Calls inside calls are not recorded, such as those that a
// library's collective makes.
class Inside {
 public:
  // `site`: who calls the wrapper.
  explicit Inside(const Call& call, const void* site = __builtin_return_address(0));
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return thread_ != nullptr; }
  // The call waits for these requests, by request_number().
  void waits_for(std::span<const int> requests);

 private:
  ThreadRecord* thread_ = nullptr;
};
bool inside();  // this thread is inside a recorded call

// Messages of a call, for the counts that tell whether a message was sent. Peers are ranks in MPI_COMM_WORLD. They
// return the number of the message's meeting.
std::uint64_t count_sent(const Call& call);
std::uint64_t count_received(std::uint64_t communicator, std::int32_t peer, std::int32_t tag);

// For --time: the call that this thread is inside is at this meeting.
void meet(std::uint64_t number, bool gives, bool waits);

// Operations under way.
void start(std::uintptr_t request, const Call& call);
int request_number(std::uintptr_t request);  // -1: not recorded
Call started(int number);
bool complete(int number);  // false: it was not under way

// A test or a probe that found nothing.
void poll(const Call& call);

template <class Function>
struct Signature;
template <class R, class... A>
struct Signature<R(A...)> {
  using Result = R;
  using Arguments = std::tuple<A...>;
};

}  // namespace who_waits

// The function that the program would have called, as `next`.
#define NEXT(Function, name) \
  static auto* const next = reinterpret_cast<std::add_pointer_t<Function>>(::dlsym(RTLD_NEXT, name))

// WRAP(6, MPI_Send, send) defines MPI_Send, which has 6 arguments, as send<Kind::MPI_Send>. Such templates are INLINE:
// Inside asks for the address of who called it.
#define EXPORTED __attribute__((visibility("default")))
#define INLINE __attribute__((always_inline)) inline
#define WRAP(count, name, wrapper) WRAP_AS(count, name, wrapper<Kind::name>)
#define WRAP_AS(count, name, ...)                                                       \
  EXPORTED Signature<decltype(name)>::Result name(PARAMETERS_##count(decltype(name))) { \
    return __VA_ARGS__(ARGUMENTS_##count);                                              \
  }
#define PARAMETER(F, i) std::tuple_element_t<i, Signature<F>::Arguments> a##i
#define PARAMETERS_0(F)
#define PARAMETERS_1(F) PARAMETER(F, 0)
#define PARAMETERS_2(F) PARAMETERS_1(F), PARAMETER(F, 1)
#define PARAMETERS_3(F) PARAMETERS_2(F), PARAMETER(F, 2)
#define PARAMETERS_4(F) PARAMETERS_3(F), PARAMETER(F, 3)
#define PARAMETERS_5(F) PARAMETERS_4(F), PARAMETER(F, 4)
#define PARAMETERS_6(F) PARAMETERS_5(F), PARAMETER(F, 5)
#define PARAMETERS_7(F) PARAMETERS_6(F), PARAMETER(F, 6)
#define PARAMETERS_8(F) PARAMETERS_7(F), PARAMETER(F, 7)
#define PARAMETERS_9(F) PARAMETERS_8(F), PARAMETER(F, 8)
#define PARAMETERS_10(F) PARAMETERS_9(F), PARAMETER(F, 9)
#define ARGUMENTS_0
#define ARGUMENTS_1 a0
#define ARGUMENTS_2 a0, a1
#define ARGUMENTS_3 a0, a1, a2
#define ARGUMENTS_4 a0, a1, a2, a3
#define ARGUMENTS_5 a0, a1, a2, a3, a4
#define ARGUMENTS_6 a0, a1, a2, a3, a4, a5
#define ARGUMENTS_7 a0, a1, a2, a3, a4, a5, a6
#define ARGUMENTS_8 a0, a1, a2, a3, a4, a5, a6, a7
#define ARGUMENTS_9 a0, a1, a2, a3, a4, a5, a6, a7, a8
#define ARGUMENTS_10 a0, a1, a2, a3, a4, a5, a6, a7, a8, a9
