#!/usr/bin/env bash
# Compares the hosts' RDMA, looks for faults, measures, and shows whether the traffic used RDMA. Start it on one of the hosts.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
read -ra options <<<"$OPTIONS"
tune=$BUILD/07-rdma-tuning/rdma_tune
mpirun --hostfile "$HOSTFILE" --npernode 1 "$tune" compare
mpirun --hostfile "$HOSTFILE" --npernode 1 "$tune" check
: "${REQUIRE:=}" # EDIT: rdma: the job fails unless this host's traffic used RDMA
# verify reads the counters of this host; exec gives each host its own settings.
exec "$tune" verify ${REQUIRE:+--require "$REQUIRE"} -- \
  mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "$tune" exec -- "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
