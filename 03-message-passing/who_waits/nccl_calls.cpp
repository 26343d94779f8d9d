// The wrappers of NCCL's calls and of the CUDA runtime's waits. NCCL's calls queue work on a stream, and a program that
// hangs is seen in a wait for the stream, or inside the call itself, if it has to connect to its peers first.
#include "recorder.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

namespace who_waits {

namespace {

template <class Wanted, class... A>
Wanted argument(Wanted otherwise, A... all) {  // the argument of this type
  if constexpr ((std::is_same_v<Wanted, A> || ...)) return std::get<Wanted>(std::tuple<A...>(all...));
  return otherwise;
}

std::uint64_t bytes_of(std::size_t count, ncclDataType_t type) {
  constexpr std::uint64_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // in the order of ncclDataType_t
  return static_cast<std::size_t>(type) < std::size(sizes) ? count * sizes[type] : 0;
}

std::uintptr_t handle_of(ncclComm_t comm) { return reinterpret_cast<std::uintptr_t>(comm); }

Call next_in(ncclComm_t comm, Call call) {
  call.waits = false;  // it waits on the stream
  Communicator* const known = off() ? nullptr : find(handle_of(comm));
  return known ? known->next(call) : call;
}

void created(ncclComm_t comm, std::uint64_t id, int size, int rank) {
  if (!off() && comm) add(handle_of(comm), id, size, rank, {}, true);
}

template <Kind kind, class... A>
INLINE ncclResult_t collective(A... all) {
  const auto type = argument(ncclNumTypes, all...);
  const Call call =
      next_in(argument(ncclComm_t{}, all...), {.kind = kind,
                                               .root = type == ncclNumTypes ? no_rank : argument(no_rank, all...),
                                               .bytes = bytes_of(argument(std::size_t{0}, all...), type)});
  return next_inside<kind, ncclResult_t>(call, all...);
}

template <Kind kind, class Data>
INLINE ncclResult_t message(Data data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                            cudaStream_t stream) {
  Call call{.kind = kind, .peer = peer, .tag = 0, .bytes = bytes_of(count, type)};
  if (!off()) {
    if (const Communicator* const known = find(handle_of(comm))) call.communicator = known->id;
    if (kind == Kind::ncclSend)
      count_sent(call);
    else
      count_received(call.communicator, peer, 0);  // started: whether it is complete is known to the stream alone
  }
  return next_inside<kind, ncclResult_t>(call, data, count, type, peer, comm, stream);
}

template <Kind kind, class... Config>
INLINE ncclResult_t initialize(ncclComm_t* comm, int size, ncclUniqueId id, int rank, Config... config) {
  std::uint64_t hash = 0, words[sizeof id / 8];
  std::memcpy(words, &id, sizeof id);
  for (const std::uint64_t word : words) hash = mix(hash, word);
  const auto result = next_inside<kind, ncclResult_t>({.kind = kind, .tag = size, .communicator = hash}, comm, size, id,
                                                      rank, config...);
  if (result == ncclSuccess || result == ncclInProgress) created(*comm, hash, size, rank);
  return result;
}

template <Kind kind, class Config>
INLINE ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* made, Config config) {
  const Call call = next_in(comm, {.kind = kind});
  const auto result = next_inside<kind, ncclResult_t>(call, comm, color, key, made, config);
  int size = 0, rank = 0;
  if (result == ncclSuccess && *made && ncclCommCount(*made, &size) == ncclSuccess &&
      ncclCommUserRank(*made, &rank) == ncclSuccess)
    created(*made, mix(mix(call.communicator, call.sequence), static_cast<std::uint64_t>(color)), size, rank);
  return result;
}

template <Kind kind, class... A>
INLINE auto waiting(A... all) {
  using Result = std::conditional_t<name_of(kind)[0] == 'n', ncclResult_t, cudaError_t>;
  const auto result = next_inside<kind, Result>({.kind = kind, .bytes = argument(std::size_t{0}, all...)}, all...);
  if (kind == Kind::ncclCommDestroy) forget(handle_of(argument(ncclComm_t{}, all...)));
  return result;
}

template <Kind kind, class... A>
INLINE cudaError_t asking(A... all) {
  const auto result = next<kind, cudaError_t>(all...);
  if (result == cudaErrorNotReady) poll({.kind = kind});
  return result;
}

}  // namespace

}  // namespace who_waits

using namespace who_waits;

#pragma GCC visibility push(default)
extern "C" {
#define X(...)
#define Y WRAP
#include "calls.inc"
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  forget(handle_of(comm));
  return real<decltype(ncclCommAbort)>("ncclCommAbort")(comm);
}
}
