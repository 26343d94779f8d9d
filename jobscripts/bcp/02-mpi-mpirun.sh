#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 02-mpi-mpirun --array-type MPI --replicas 2 --total-runtime 10m)
# All-reduce by mpirun itself, with the array type MPI: BCP tells mpirun the replicas.
# Submit it where ngc is logged in: bash 02-mpi-mpirun.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

program=("$BUILD/02-mpi/all_reduce_perf" -g "$NGC_GPUS_PER_NODE" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=-b 64M -e 4G -f 2 -n 100}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
exec mpirun --allow-run-as-root -x IBV_DRIVERS=/usr/lib/libibverbs/libmlx5 -np "$NGC_ARRAY_SIZE" -npernode 1 \
  "${tune[@]}" "${program[@]}" "${options[@]}"
