#!/usr/bin/env bash
directives=(--name 02-mpi --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# All-reduce by mpirun through bcprun: one process per replica drives all its GPUs. bcprun must be told in two places.
# Submit it where ngc is logged in: bash 02-mpi.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=-b 64M -e 4G -f 2 -n 100}" # EDIT: all_reduce_perf --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
NGC_ARRAY_TYPE=MPIJob "${bcprun[@]}" -p 1 --launcher 'mpirun --allow-run-as-root' -c "$BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/02-mpi/all_reduce_perf -g $NGC_GPUS_PER_NODE --json $LOGS/result.jsonl $OPTIONS"
