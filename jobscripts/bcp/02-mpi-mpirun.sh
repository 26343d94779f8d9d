#!/usr/bin/env bash
directives=(--name 02-mpi-mpirun --array-type MPI --replicas 2 --total-runtime 10m) # EDIT
# All-reduce by mpirun itself, with the array type MPI: BCP tells mpirun the replicas.
# Submit it where ngc is logged in: bash 02-mpi-mpirun.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=-b 64M -e 4G -f 2 -n 100}" # EDIT: all_reduce_perf --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
read -ra options <<<"$OPTIONS"
exec mpirun --allow-run-as-root -x IBV_DRIVERS=/usr/lib/libibverbs/libmlx5 -np "$NGC_ARRAY_SIZE" -npernode 1 \
  "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/02-mpi/all_reduce_perf" -g "$NGC_GPUS_PER_NODE" --json "$LOGS/result.jsonl" "${options[@]}"
