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

// A stream as a tag. The legacy stream has two names. What a wait for an event waits for is unknown.
std::int32_t stream_tag(cudaStream_t stream) {
  const auto value = reinterpret_cast<std::uintptr_t>(stream);
  return static_cast<std::int32_t>(mix(0, value == 1 ? 0 : value) & 0x7fffffff);
}
thread_local std::int32_t last_tag = unknown;  // of this thread's last call, which ncclGroupEnd starts

std::atomic<std::int32_t> queued{0};
thread_local std::int32_t groups = 0, group = 0;  // how many ncclGroupStart this thread is behind; their order
std::uintptr_t open_group() { return reinterpret_cast<std::uintptr_t>(&group); }  // under way until its end

Call next_in(ncclComm_t comm, Call call) {
  call.waits = false;  // it waits on the stream
  call.receive_tag = groups > 0 ? group : ++queued;
  if (Communicator* const known = off() ? nullptr : find(handle_of(comm))) known->next(call);
  return call;
}

void created(ncclComm_t comm, std::uint64_t id, int size, int rank) {
  if (!off() && comm) add(handle_of(comm), id, size, rank, {}, Sort::nccl);
}

template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::collective) INLINE ncclResult_t wrapped(A... all) {
  const auto type = argument(ncclNumTypes, all...);
  const Call call =
      next_in(argument(ncclComm_t{}, all...), {.kind = kind,
                                               .tag = last_tag = stream_tag(argument(cudaStream_t{}, all...)),
                                               .root = type == ncclNumTypes ? no_rank : argument(no_rank, all...),
                                               .bytes = bytes_of(argument(std::size_t{0}, all...), type)});
  return next_inside<kind, ncclResult_t>(call, all...);
}

template <Kind kind, class Data>
requires(fields_of(kind).wrapper == Wrapper::message) INLINE ncclResult_t
    wrapped(Data data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  Call call{.kind = kind, .peer = peer, .tag = stream_tag(stream), .bytes = bytes_of(count, type)};
  last_tag = call.tag;
  if (!off()) {
    if (const Communicator* const known = find(handle_of(comm))) call.communicator = known->id;
    if (kind == Kind::ncclSend)
      count_sent(call);
    else
      count_received(call.communicator, peer,
                     call.tag);  // started: whether it is complete is known to the stream alone
  }
  return next_inside<kind, ncclResult_t>(call, data, count, type, peer, comm, stream);
}

template <Kind kind, class... Config>
requires(fields_of(kind).wrapper == Wrapper::initialize) INLINE ncclResult_t
    wrapped(ncclComm_t* comm, int size, ncclUniqueId id, int rank, Config... config) {
  std::uint64_t hash = 0, words[sizeof id / 8];
  std::memcpy(words, &id, sizeof id);
  for (const std::uint64_t word : words) hash = mix(hash, word);
  const auto result = next_inside<kind, ncclResult_t>({.kind = kind, .tag = size, .communicator = hash}, comm, size, id,
                                                      rank, config...);
  if (result == ncclSuccess || result == ncclInProgress) created(*comm, hash, size, rank);
  return result;
}

template <Kind kind, class Config>
requires(fields_of(kind).wrapper == Wrapper::split) INLINE ncclResult_t
    wrapped(ncclComm_t comm, int color, int key, ncclComm_t* made, Config config) {
  const Call call = next_in(comm, {.kind = kind});
  const auto result = next_inside<kind, ncclResult_t>(call, comm, color, key, made, config);
  int size = 0, rank = 0;
  if (result == ncclSuccess && *made && ncclCommCount(*made, &size) == ncclSuccess &&
      ncclCommUserRank(*made, &rank) == ncclSuccess)
    created(*made, mix(mix(call.communicator, call.sequence), static_cast<std::uint64_t>(color)), size, rank);
  return result;
}

// The stream that a call waits for; any: all of them.
template <Kind kind, class... A>
std::int32_t wait_tag(A... all) {
  if constexpr (kind == Kind::ncclGroupEnd) return last_tag;
  if constexpr (kind == Kind::cudaEventSynchronize || kind == Kind::cudaEventQuery) return unknown;
  if constexpr (kind == Kind::cudaMemcpy || (std::is_same_v<cudaStream_t, A> || ...))
    return stream_tag(argument(cudaStream_t{}, all...));
  return any;
}

template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::waiting) INLINE auto wrapped(A... all) {
  using Result = std::conditional_t<name_of(kind)[0] == 'n', ncclResult_t, cudaError_t>;
  Call call{.kind = kind, .tag = wait_tag<kind>(all...), .bytes = argument(std::size_t{0}, all...)};
  if (const Communicator* const known = off() ? nullptr : find(handle_of(argument(ncclComm_t{}, all...))))
    call.communicator = known->id;
  if (kind == Kind::ncclGroupEnd && !inside() && --groups == 0) complete(request_number(open_group()));
  const auto result = next_inside<kind, Result>(call, all...);
  if (kind == Kind::ncclCommDestroy) forget(handle_of(argument(ncclComm_t{}, all...)));
  return result;
}

template <Kind kind, class... A>
requires(fields_of(kind).wrapper == Wrapper::asking) INLINE cudaError_t wrapped(A... all) {
  const auto result = next<kind, cudaError_t>(all...);
  if (result == cudaErrorNotReady) poll({.kind = kind, .tag = wait_tag<kind>(all...)});
  return result;
}

}  // namespace

}  // namespace who_waits

using namespace who_waits;

#pragma GCC visibility push(default)
extern "C" {
#define GPU_CALL WRAP
#include "calls.inc"
ncclResult_t ncclGroupStart() {
  if (!inside() && groups++ == 0)
    group = ++queued, start(open_group(), {.kind = Kind::ncclGroupEnd, .receive_tag = group});
  return real<decltype(ncclGroupStart)>("ncclGroupStart")();
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  forget(handle_of(comm));
  return real<decltype(ncclCommAbort)>("ncclCommAbort")(comm);
}
}
