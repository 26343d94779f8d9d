#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 02-mpi --array-type PYTORCH --replicas 2 --total-runtime 10m)
# All-reduce by mpirun through bcprun: one process per replica drives all its GPUs. bcprun must be told in two places.
# Submit it where ngc is logged in: bash 02-mpi.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

program="$BUILD/02-mpi/all_reduce_perf -g $NGC_GPUS_PER_NODE --json $LOGS/result.jsonl ${OPTIONS:=-b 64M -e 4G -f 2 -n 100}" # EDIT: your program and its options (--help lists them)
NGC_ARRAY_TYPE=MPIJob "${bcprun[@]}" -p 1 --launcher 'mpirun --allow-run-as-root' -c "${tune[*]} $program"
