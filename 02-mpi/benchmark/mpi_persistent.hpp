// mpi_persistent.hpp: persistent collectives under one name: MPI 4 and Open MPI 5 have them; Open MPI 4 has
// them as an extension.
#pragma once

#include <mpi.h>
#if MPI_VERSION < 4 && defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace perf {

#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
#define MULTINODE_MPI_PERSISTENT
inline constexpr auto allgather_init = MPI_Allgather_init;
inline constexpr auto allreduce_init = MPI_Allreduce_init;
inline constexpr auto alltoall_init = MPI_Alltoall_init;
inline constexpr auto bcast_init = MPI_Bcast_init;
inline constexpr auto gather_init = MPI_Gather_init;
inline constexpr auto reduce_init = MPI_Reduce_init;
inline constexpr auto reduce_scatter_block_init = MPI_Reduce_scatter_block_init;
inline constexpr auto scatter_init = MPI_Scatter_init;
#elif defined(OMPI_HAVE_MPI_EXT_PCOLLREQ)
#define MULTINODE_MPI_PERSISTENT
inline constexpr auto allgather_init = MPIX_Allgather_init;
inline constexpr auto allreduce_init = MPIX_Allreduce_init;
inline constexpr auto alltoall_init = MPIX_Alltoall_init;
inline constexpr auto bcast_init = MPIX_Bcast_init;
inline constexpr auto gather_init = MPIX_Gather_init;
inline constexpr auto reduce_init = MPIX_Reduce_init;
inline constexpr auto reduce_scatter_block_init = MPIX_Reduce_scatter_block_init;
inline constexpr auto scatter_init = MPIX_Scatter_init;
#endif

}  // namespace perf
