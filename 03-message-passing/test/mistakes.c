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
  const char* rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
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

#define MISTAKE(name, parameters, arguments, change)                  \
  int name parameters {                                               \
    static int number;                                                \
    static int(*next) parameters;                                     \
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
