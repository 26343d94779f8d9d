// A library to load into any MPI program: it puts one mistake into one call of one rank, for the tests of who_waits.
// MISTAKE="RANK CALL NUMBER KIND": skip (the call is left out), tag, root and count (another one), barrier (MPI_Barrier
// instead), sleep and compute (8 s before it), stop (for ever before it), exit, abort.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char* planted(const char* call, int number) {
  const char* text = getenv("MISTAKE");
  const char* variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"};
  const char* rank = NULL;
  for (int i = 0; i < 4 && !rank; ++i) rank = getenv(variables[i]);
  static __thread char wanted_rank[8], wanted_call[40], kind[16];
  int wanted_number = 0;
  if (!text || !rank || sscanf(text, "%7s %39s %d %15s", wanted_rank, wanted_call, &wanted_number, kind) != 4)
    return "";
  if (strcmp(rank, wanted_rank) || strcmp(call, wanted_call) || number != wanted_number) return "";
  if (!strcmp(kind, "sleep")) sleep(8);
  if (!strcmp(kind, "stop")) pause();
  if (!strcmp(kind, "exit")) _exit(0);
  if (!strcmp(kind, "abort")) abort();
  if (!strcmp(kind, "compute"))
    for (time_t end = time(NULL) + 8; time(NULL) < end;) continue;
  return kind;
}

#define MISTAKE(name, parameters, arguments, change) MISTAKE_OF(int, name, parameters, arguments, change)
#define MISTAKE_OF(result, name, parameters, arguments, change)       \
  result name parameters {                                            \
    static int number;                                                \
    static result(*next) parameters;                                  \
    if (!next) *(void**)&next = dlsym(RTLD_NEXT, #name);              \
    const char* kind = planted(#name, ++number);                      \
    if (!strcmp(kind, "skip")) return MPI_SUCCESS;                    \
    if (!strcmp(kind, "barrier")) return MPI_Barrier(MPI_COMM_WORLD); \
    change;                                                           \
    return next arguments;                                            \
  }
#define OTHER(what) \
  if (!strcmp(kind, #what)) ++what
#define HALF \
  if (!strcmp(kind, "count")) count /= 2
MISTAKE(MPI_Send, (const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm),
        (data, count, type, to, tag, comm), OTHER(tag))
MISTAKE(MPI_Recv, (void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status),
        (data, count, type, from, tag, comm, status), OTHER(tag))
MISTAKE(MPI_Isend,
        (const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request),
        (data, count, type, to, tag, comm, request), OTHER(tag))
MISTAKE(MPI_Irecv, (void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request),
        (data, count, type, from, tag, comm, request), OTHER(tag))
MISTAKE(MPI_Barrier, (MPI_Comm comm), (comm), )
MISTAKE(MPI_Bcast, (void* data, int count, MPI_Datatype type, int root, MPI_Comm comm), (data, count, type, root, comm),
        OTHER(root);
        HALF)
MISTAKE(MPI_Reduce, (const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
        (in, out, count, type, op, root, comm), OTHER(root);
        HALF)
MISTAKE(MPI_Allreduce, (const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
        (in, out, count, type, op, comm), HALF)
MISTAKE(MPI_Alltoall, (const void* in, int n, MPI_Datatype a, void* out, int count, MPI_Datatype b, MPI_Comm comm),
        (in, n, a, out, count, b, comm), )
MISTAKE(MPI_Allgather, (const void* in, int n, MPI_Datatype a, void* out, int count, MPI_Datatype b, MPI_Comm comm),
        (in, n, a, out, count, b, comm), )
MISTAKE(MPI_Gather, (const void* in, int n, MPI_Datatype a, void* out, int m, MPI_Datatype b, int root, MPI_Comm comm),
        (in, n, a, out, m, b, root, comm), OTHER(root))
MISTAKE(MPI_Scatter, (const void* in, int n, MPI_Datatype a, void* out, int m, MPI_Datatype b, int root, MPI_Comm comm),
        (in, n, a, out, m, b, root, comm), OTHER(root))
MISTAKE(MPI_Ibarrier, (MPI_Comm comm, MPI_Request* request), (comm, request), )

#ifdef WITH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>
#define NCCL(name, parameters, arguments, change) MISTAKE_OF(ncclResult_t, name, parameters, arguments, change)
NCCL(ncclCommInitRank, (ncclComm_t * comm, int size, ncclUniqueId id, int rank), (comm, size, id, rank), )
NCCL(ncclAllReduce,
     (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream),
     (in, out, count, type, op, comm, stream), HALF)
NCCL(ncclAllGather,
     (const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
     (in, out, count, type, comm, stream), HALF)
NCCL(ncclBroadcast,
     (const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream),
     (in, out, count, type, root, comm, stream), OTHER(root))
NCCL(ncclSend, (const void* data, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream),
     (data, count, type, to, comm, stream), HALF)
NCCL(ncclRecv, (void* data, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream),
     (data, count, type, from, comm, stream), HALF)
MISTAKE_OF(cudaError_t, cudaStreamSynchronize, (cudaStream_t stream), (stream), )
#endif
