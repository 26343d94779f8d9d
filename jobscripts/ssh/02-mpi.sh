#!/usr/bin/env bash
# All-reduce over MPI: how fast is the network, and is every element right?
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
read -ra options <<<"$OPTIONS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
