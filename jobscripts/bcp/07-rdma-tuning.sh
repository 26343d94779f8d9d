#!/usr/bin/env bash
directives=(--name 07-rdma-tuning --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Compares the replicas' RDMA, looks for faults, measures, and shows whether the traffic used RDMA.
# Submit it where ngc is logged in: bash 07-rdma-tuning.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
tune=$BUILD/07-rdma-tuning/rdma_tune
"${bcprun[@]}" -p 1 -c "$tune --json $LOGS/replica-\$NGC_ARRAY_INDEX.json"
"${bcprun[@]}" -p 1 -c "$tune check"
"$tune" compare "$LOGS"/replica-*.json
: "${REQUIRE:=}" # EDIT: rdma: the job fails unless this replica's traffic used RDMA
# verify reads the counters of this replica; exec gives each replica its own settings.
"$tune" verify ${REQUIRE:+--require "$REQUIRE"} -- "${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$tune exec -- \
  $BUILD/02-mpi/all_reduce_perf --json $LOGS/result.jsonl $OPTIONS"
