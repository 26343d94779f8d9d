// The wrappers of NCCL's calls and of the CUDA runtime's waits. NCCL's calls queue work on a stream, and a program that
// hangs is seen in a wait for the stream, or inside the call itself, if it has to connect to its peers first.
#include "recorder.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <array>
#include <cstring>

namespace who_waits {

namespace {

// The function that the program would have called.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static auto* const theirs = next<decltype(name)>(#name)

std::uint64_t bytes_of(std::size_t count, ncclDataType_t type) {
  constexpr std::array<std::uint64_t, 12> sizes = {1, 1, 4, 4, 8, 8,
                                                   2, 4, 8, 2, 1, 1};  // in the order of ncclDataType_t
  const auto at = static_cast<std::size_t>(type);
  return at < sizes.size() ? count * sizes[at] : 0;
}

std::uintptr_t handle_of(ncclComm_t comm) { return reinterpret_cast<std::uintptr_t>(comm); }

Call collective(Kind kind, ncclComm_t comm, int root, std::size_t count, ncclDataType_t type) {
  Call call{.kind = kind, .root = root, .bytes = bytes_of(count, type), .waits = false};  // it waits on the stream
  if (!record() || inside()) return call;
  Communicator* const known = find(handle_of(comm));
  return known ? known->next(call) : call;
}

Call message(Kind kind, ncclComm_t comm, int peer, std::size_t count, ncclDataType_t type) {
  Call call{.kind = kind, .peer = peer, .tag = 0, .bytes = bytes_of(count, type)};
  if (!record() || inside()) return call;
  if (const Communicator* const known = find(handle_of(comm))) call.communicator = known->id;
  if (kind == Kind::ncclSend)
    count_sent(call);
  else
    count_received(call.communicator, peer, 0);  // started: whether it is complete is known to the stream alone
  return call;
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

}  // namespace

}  // namespace who_waits

using namespace who_waits;

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  NEXT(ncclCommInitRank);
  ncclResult_t result;
  {
    const Inside in({.kind = Kind::ncclCommInitRank, .communicator = hash_of(id), .sequence = 1});
    result = theirs(comm, size, id, rank);
  }
  if (result == ncclSuccess) created(*comm, hash_of(id), size, rank);
  return result;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  NEXT(ncclCommInitRankConfig);
  ncclResult_t result;
  {
    const Inside in({.kind = Kind::ncclCommInitRankConfig, .communicator = hash_of(id), .sequence = 1});
    result = theirs(comm, size, id, rank, config);
  }
  if (result == ncclSuccess || result == ncclInProgress) created(*comm, hash_of(id), size, rank);
  return result;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  NEXT(ncclCommSplit);
  const Call call = collective(Kind::ncclCommSplit, comm, no_rank, 0, ncclInt8);
  ncclResult_t result;
  {
    const Inside in(call);
    result = theirs(comm, color, key, made, config);
  }
  int size = 0, rank = 0;
  if (result == ncclSuccess && *made && ncclCommCount(*made, &size) == ncclSuccess &&
      ncclCommUserRank(*made, &rank) == ncclSuccess)
    created(*made, mix(mix(call.communicator, call.sequence), static_cast<std::uint64_t>(color)), size, rank);
  return result;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  NEXT(ncclCommDestroy);
  ncclResult_t result;
  {
    const Inside in({.kind = Kind::ncclCommDestroy});
    result = theirs(comm);
  }
  forget(handle_of(comm));
  return result;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  NEXT(ncclCommAbort);
  forget(handle_of(comm));
  return theirs(comm);
}

#define NCCL(name, root, parameters, arguments)                       \
  ncclResult_t name parameters {                                      \
    NEXT(name);                                                       \
    const Inside in(collective(Kind::name, comm, root, count, type)); \
    return theirs arguments;                                          \
  }
NCCL(ncclAllReduce, no_rank,
     (const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream),
     (from, to, count, type, op, comm, stream))
NCCL(ncclBroadcast, peer,
     (const void* from, void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
      cudaStream_t stream),
     (from, to, count, type, peer, comm, stream))
NCCL(ncclBcast, peer,
     (void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
     (data, count, type, peer, comm, stream))
NCCL(ncclReduce, peer,
     (const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int peer, ncclComm_t comm,
      cudaStream_t stream),
     (from, to, count, type, op, peer, comm, stream))
NCCL(ncclAllGather, no_rank,
     (const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
     (from, to, count, type, comm, stream))
NCCL(ncclReduceScatter, no_rank,
     (const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream),
     (from, to, count, type, op, comm, stream))
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  NEXT(ncclSend);
  const Inside in(message(Kind::ncclSend, comm, peer, count, type));
  return theirs(data, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  NEXT(ncclRecv);
  const Inside in(message(Kind::ncclRecv, comm, peer, count, type));
  return theirs(data, count, type, peer, comm, stream);
}
ncclResult_t ncclGroupEnd() {
  NEXT(ncclGroupEnd);
  const Inside in({.kind = Kind::ncclGroupEnd});
  return theirs();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  NEXT(cudaStreamSynchronize);
  const Inside in({.kind = Kind::cudaStreamSynchronize});
  return theirs(stream);
}
cudaError_t cudaDeviceSynchronize() {
  NEXT(cudaDeviceSynchronize);
  const Inside in({.kind = Kind::cudaDeviceSynchronize});
  return theirs();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  NEXT(cudaEventSynchronize);
  const Inside in({.kind = Kind::cudaEventSynchronize});
  return theirs(event);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  NEXT(cudaMemcpy);
  const Inside in({.kind = Kind::cudaMemcpy, .bytes = bytes});
  return theirs(to, from, bytes, kind);
}
}
