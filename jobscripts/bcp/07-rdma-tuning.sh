#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 07-rdma-tuning --array-type PYTORCH --replicas 2 --total-runtime 10m)
# Compares the replicas' RDMA, looks for faults, measures, and shows whether the traffic used RDMA.
# Submit it where ngc is logged in: bash 07-rdma-tuning.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${OPTIONS:=-b 8 -e 64M -f 8}" # all_reduce_perf --help lists them
rdma_tune=$BUILD/07-rdma-tuning/rdma_tune
"${bcprun[@]}" -p 1 -c "$rdma_tune --json $LOGS/replica-\$NGC_ARRAY_INDEX.json"
"${bcprun[@]}" -p 1 -c "$rdma_tune check" || (($? == 3)) # 3: no RDMA here
"$rdma_tune" compare "$LOGS"/replica-*.json || (($? == 3))
: "${REQUIRE:=}" # rdma: the job fails unless this replica's traffic used RDMA
# verify reads the counters of this replica; exec gives each replica its own settings.
"$rdma_tune" verify ${REQUIRE:+--require "$REQUIRE"} -- "${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$rdma_tune exec -- \
  $BUILD/02-mpi/all_reduce_perf --json $LOGS/result.jsonl $OPTIONS"
