# For bash, zsh and dash: source this file to run several MPI processes on one small machine, in a container or as root.
# It keeps variables that are already set. The env.sh in a build folder does the same and puts the programs on the PATH.
# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0

# mpirun refuses to start as root, but containers often have no other user.
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT-1}"
  export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM-1}"
fi

# mpirun starts at most one process per core, and the examples have more processes than a laptop has cores: Open MPI 4,
# and Open MPI 5, which puts all processes on the first of several hosts where a policy says oversubscribe but not slot.
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe-1}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy-slot:oversubscribe}"

# Open MPI 4 copies messages from one process's memory to another's (CMA). Containers forbid that system call, and Open
# MPI prints an error for each message: make it copy through shared memory. Without it, MPI_Win_create fails by "rdma".
if [ -e /.dockerenv ] || [ -e /run/.containerenv ] || [ -e /.singularity.d ] ||
  [ -n "${container:-}${KUBERNETES_SERVICE_HOST:-}" ]; then
  export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism-none}"
  export OMPI_MCA_osc="${OMPI_MCA_osc-^rdma}"
fi

# Where a host has IPv4 and IPv6 addresses, Debian 13's Open MPI 5.0.7 warns about every pair of processes: use IPv4
# alone, if there is any.
if tail -n +2 /proc/net/route 2>/dev/null | grep -q .; then
  export OMPI_MCA_btl_tcp_disable_family="${OMPI_MCA_btl_tcp_disable_family-6}"
fi

# By default each process starts one OpenMP thread per core, and the threads of all processes compete for the cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# Debian 12's OpenBLAS 0.3.21 takes the kernels of a Pentium 4 for an Intel processor that it does not know, and a matrix
# product then takes three times as long. All that have this instruction set can use SkylakeX's.
if grep -qw -m1 avx512_fp16 /proc/cpuinfo 2>/dev/null; then
  export OPENBLAS_CORETYPE="${OPENBLAS_CORETYPE-SkylakeX}"
fi
