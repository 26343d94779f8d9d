#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 8 --backoff-limit 0) # pods beside the master, GPUs of each pod
# Bandwidth of one all-reduce of 4 GB over NCCL as one number, by torchrun as in the tutorial.
# Submit it where runai is logged in: bash 02-mpi-bench.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=8}" # per pod: one for each GPU, or core
program=("$BUILD/02-mpi/all_reduce_bench" --json "$LOGS/result.jsonl") # EDIT: your program, such as (python3 -u train.py)
read -ra options <<<"${OPTIONS:=--trials 10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
: "${TORCHRUN:=torchrun}" # its path in the image
exec "${tune[@]}" "$TORCHRUN" --nnodes "$WORLD_SIZE" --node_rank "$RANK" --nproc_per_node "$PROCESSES" --max_restarts 0 \
  --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" --role "$(hostname -s | tr -dc '0-9'):" --log_dir "$LOGS" --tee 3 \
  --no_python -- "${program[@]}" "${options[@]}"
