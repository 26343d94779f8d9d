#!/usr/bin/env bash
# Compares the hosts' RDMA, looks for faults, measures, and shows whether the traffic used RDMA. Start it on one of the hosts.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

read -ra options <<<"${OPTIONS:=-b 8 -e 64M -f 8}" # all_reduce_perf --help lists them
rdma_tune=$BUILD/07-rdma-tuning/rdma_tune
mpirun --hostfile "$HOSTFILE" --npernode 1 "$rdma_tune" compare || (($? == 3)) # 3: no RDMA here
mpirun --hostfile "$HOSTFILE" --npernode 1 "$rdma_tune" check || (($? == 3))
: "${REQUIRE:=}" # rdma: the job fails unless this host's traffic used RDMA
# verify reads the counters of this host; exec gives each host its own settings.
with_all_hosts "$rdma_tune" verify ${REQUIRE:+--require "$REQUIRE"} -- \
  mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "$rdma_tune" exec -- "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
