#!/usr/bin/env bash
directives=(--workers 1 -g 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Compares the pods' RDMA, looks for faults, measures, and shows whether the traffic used RDMA.
# Submit it where runai is logged in: bash 07-rdma-tuning.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=2}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
read -ra options <<<"$OPTIONS"
tune=$BUILD/07-rdma-tuning/rdma_tune
"$tune" check
"$tune" --json "$LOGS/new-$RANK"
mv "$LOGS/new-$RANK" "$LOGS/pod-$RANK.json"
until found=("$LOGS"/pod-*.json) && ((${#found[@]} == WORLD_SIZE)); do
  ((SECONDS < 600)) || { echo "not all pods came within 600 s: ${found[*]}" >&2 && exit 1; }
  sleep 0.2
done
((RANK > 0)) || "$tune" compare "${found[@]}"
: "${REQUIRE:=}" # EDIT: rdma: the job fails unless each pod's traffic used RDMA
# verify reads the pod's counters; exec gives each pod its own settings; mnrun reads WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT.
exec "$tune" verify ${REQUIRE:+--require "$REQUIRE"} -- "$tune" exec -- \
  "$BUILD/01-environment/mnrun" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
