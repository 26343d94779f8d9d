// The wrappers of NCCL's calls and of the CUDA runtime's waits. NCCL's calls queue work on a stream, and a program that
// hangs is seen in a wait for the stream, or inside the call itself, if it has to connect to its peers first.
#include "recorder.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <tuple>
#include <type_traits>

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
  if (!record() || inside()) return call;
  Communicator* const known = find(handle_of(comm));
  return known ? known->next(call) : call;
}

void created(ncclComm_t comm, std::uint64_t id, int size, int rank) {
  if (record() && !inside() && comm) add(handle_of(comm), id, size, rank, {}, true);
}

std::uint64_t hash_of(const ncclUniqueId& id) {
  std::uint64_t hash = 0;
  for (std::size_t at = 0; at + 8 <= sizeof id; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&id) + at, 8);
    hash = mix(hash, word);
  }
  return hash;
}

template <Kind kind, class... A>
INLINE ncclResult_t collective(A... all) {
  NEXT(ncclResult_t(A...), name_of(kind));
  const auto type = argument(ncclNumTypes, all...);
  const Inside in(
      next_in(argument(ncclComm_t{}, all...), {.kind = kind,
                                               .root = type == ncclNumTypes ? no_rank : argument(no_rank, all...),
                                               .bytes = bytes_of(argument(std::size_t{0}, all...), type)}));
  return next(all...);
}

template <Kind kind, class Data>
INLINE ncclResult_t message(Data data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                            cudaStream_t stream) {
  NEXT(ncclResult_t(Data, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), name_of(kind));
  Call call{.kind = kind, .peer = peer, .tag = 0, .bytes = bytes_of(count, type)};
  if (record() && !inside()) {
    if (const Communicator* const known = find(handle_of(comm))) call.communicator = known->id;
    if (kind == Kind::ncclSend)
      count_sent(call);
    else
      count_received(call.communicator, peer, 0);  // started: whether it is complete is known to the stream alone
  }
  const Inside in(call);
  return next(data, count, type, peer, comm, stream);
}

template <Kind kind, class... Config>
INLINE ncclResult_t initialize(ncclComm_t* comm, int size, ncclUniqueId id, int rank, Config... config) {
  NEXT(ncclResult_t(ncclComm_t*, int, ncclUniqueId, int, Config...), name_of(kind));
  ncclResult_t result;
  {
    const Inside in({.kind = kind, .tag = size, .communicator = hash_of(id)});
    result = next(comm, size, id, rank, config...);
  }
  if (result == ncclSuccess || result == ncclInProgress) created(*comm, hash_of(id), size, rank);
  return result;
}

template <Kind kind, class Result = cudaError_t, class... A>
INLINE Result waiting(A... all) {
  NEXT(Result(A...), name_of(kind));
  Result result;
  {
    const Inside in({.kind = kind, .bytes = argument(std::size_t{0}, all...)});
    result = next(all...);
  }
  if (kind == Kind::ncclCommDestroy) forget(handle_of(argument(ncclComm_t{}, all...)));
  return result;
}

template <Kind kind, class... A>
INLINE cudaError_t asking(A... all) {
  NEXT(cudaError_t(A...), name_of(kind));
  const cudaError_t result = next(all...);
  if (result == cudaErrorNotReady) poll({.kind = kind});
  return result;
}

}  // namespace

}  // namespace who_waits

using namespace who_waits;

extern "C" {
WRAP(4, ncclCommInitRank, initialize)
WRAP(5, ncclCommInitRankConfig, initialize)
WRAP(7, ncclAllReduce, collective)
WRAP(7, ncclBroadcast, collective)
WRAP(6, ncclBcast, collective)
WRAP(8, ncclReduce, collective)
WRAP(6, ncclAllGather, collective)
WRAP(7, ncclReduceScatter, collective)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
WRAP(5, ncclCommWindowRegister, collective)
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
WRAP(6, ncclAlltoAll, collective)
WRAP(7, ncclGather, collective)
WRAP(7, ncclScatter, collective)
#endif
WRAP(6, ncclSend, message)
WRAP(6, ncclRecv, message)
WRAP_AS(0, ncclGroupEnd, waiting<Kind::ncclGroupEnd, ncclResult_t>)
WRAP_AS(1, ncclCommFinalize, waiting<Kind::ncclCommFinalize, ncclResult_t>)
WRAP_AS(1, ncclCommDestroy, waiting<Kind::ncclCommDestroy, ncclResult_t>)
WRAP(1, cudaStreamSynchronize, waiting)
WRAP(0, cudaDeviceSynchronize, waiting)
WRAP(1, cudaEventSynchronize, waiting)
WRAP(4, cudaMemcpy, waiting)
WRAP(1, cudaStreamQuery, asking)
WRAP(1, cudaEventQuery, asking)

EXPORTED ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  NEXT(decltype(ncclCommSplit), "ncclCommSplit");
  const Call call = next_in(comm, {.kind = Kind::ncclCommSplit});
  ncclResult_t result;
  {
    const Inside in(call);
    result = next(comm, color, key, made, config);
  }
  int size = 0, rank = 0;
  if (result == ncclSuccess && *made && ncclCommCount(*made, &size) == ncclSuccess &&
      ncclCommUserRank(*made, &rank) == ncclSuccess)
    created(*made, mix(mix(call.communicator, call.sequence), static_cast<std::uint64_t>(color)), size, rank);
  return result;
}
EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm) {
  NEXT(decltype(ncclCommAbort), "ncclCommAbort");
  forget(handle_of(comm));
  return next(comm);
}
}
