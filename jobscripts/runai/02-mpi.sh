#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 2 --backoff-limit 0) # pods beside the master, GPUs of each pod
# All-reduce over NCCL or Gloo, without MPI.
# Submit it where runai is logged in: bash 02-mpi.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=2}" # per pod: one for each GPU, or core
program=("$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
exec "${tune[@]}" "${launcher[@]}" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "${program[@]}" "${options[@]}"
