#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 2 --backoff-limit 0) # pods beside the master, GPUs of each pod
# Compares the pods' RDMA, looks for faults, measures, and shows whether the traffic used RDMA.
# Submit it where runai is logged in: bash 07-rdma-tuning.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=2}" # per pod: one for each GPU, or core
read -ra options <<<"${OPTIONS:=-b 8 -e 64M -f 8}" # all_reduce_perf --help lists them
rdma_tune=$BUILD/07-rdma-tuning/rdma_tune
"$rdma_tune" check || (($? == 3)) # 3: no RDMA here
"$rdma_tune" --json "$LOGS/new-$RANK"
mv "$LOGS/new-$RANK" "$LOGS/pod-$RANK.json"
until found=("$LOGS"/pod-*.json) && ((${#found[@]} == WORLD_SIZE)); do
  ((SECONDS < 600)) || { echo "not all pods came within 600 s: ${found[*]}" >&2 && exit 1; }
  sleep 0.2
done
((RANK > 0)) || "$rdma_tune" compare "${found[@]}" || (($? == 3))
: "${REQUIRE:=}" # rdma: the job fails unless each pod's traffic used RDMA
# verify reads the pod's counters; exec gives each pod its own settings; mnrun reads WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT.
exec "$rdma_tune" verify ${REQUIRE:+--require "$REQUIRE"} -- "$rdma_tune" exec -- \
  "${launcher[@]}" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
