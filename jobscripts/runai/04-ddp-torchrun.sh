#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 2 --backoff-limit 0) # pods beside the master, GPUs of each pod
# As 04-ddp with torchrun, for an image that has PyTorch, as in the tutorial.
# Submit it where runai is logged in: bash 04-ddp-torchrun.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=2}" # per pod: one for each GPU, or core
: "${CHECKPOINTS:=/mnt/scratch/checkpoints/04-ddp}" # another folder for another training
mkdir -p "$CHECKPOINTS"
program=("$BUILD/04-ddp/fashion_mnist" --checkpoint "$CHECKPOINTS" --json "$LOGS/result.jsonl") # EDIT: your program, such as (python3 -u train.py)
read -ra options <<<"${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
: "${TORCHRUN:=torchrun}" # its path in the image
exec "${tune[@]}" "$TORCHRUN" --nnodes "$WORLD_SIZE" --node_rank "$RANK" --nproc_per_node "$PROCESSES" --max_restarts 0 \
  --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" --role "$(hostname -s | tr -dc '0-9'):" --log_dir "$LOGS" --tee 3 \
  --no_python -- "${program[@]}" "${options[@]}"
