// mpi_persistent.hpp: persistent collectives under one name: MPI 4 and Open MPI 5 have them; Open MPI 4 has them as an
// extension; nullptr: this MPI has none.
#pragma once

#include <mpi.h>
#if MPI_VERSION < 4 && defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
#define PERSISTENT(name) MPI_##name##_init
#elif defined(OMPI_HAVE_MPI_EXT_PCOLLREQ)
#define PERSISTENT(name) MPIX_##name##_init
#else
#define PERSISTENT(name) nullptr
#endif

namespace perf {

inline constexpr auto allgather_init = PERSISTENT(Allgather);
inline constexpr auto allreduce_init = PERSISTENT(Allreduce);
inline constexpr auto alltoall_init = PERSISTENT(Alltoall);
inline constexpr auto bcast_init = PERSISTENT(Bcast);
inline constexpr auto gather_init = PERSISTENT(Gather);
inline constexpr auto reduce_init = PERSISTENT(Reduce);
inline constexpr auto reduce_scatter_block_init = PERSISTENT(Reduce_scatter_block);
inline constexpr auto scatter_init = PERSISTENT(Scatter);

}  // namespace perf

#undef PERSISTENT
