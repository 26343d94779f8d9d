#!/usr/bin/env bash
directives=(--workers 1 -g 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# As 04-ddp with torchrun, for an image that has PyTorch, as in the tutorial.
# Submit it where runai is logged in: bash 04-ddp-torchrun.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=2}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
: "${CHECKPOINTS:=/mnt/scratch/checkpoints/04-ddp}" # EDIT: another folder for another training
mkdir -p "$CHECKPOINTS"
: "${TORCHRUN:=torchrun}" # EDIT: its path in the image
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec "$BUILD/07-rdma-tuning/rdma_tune" exec -- "$TORCHRUN" --nnodes "$WORLD_SIZE" --node_rank "$RANK" --nproc_per_node "$PROCESSES" --max_restarts 0 \
  --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" --role "$(hostname -s | tr -dc '0-9'):" --log_dir "$LOGS" --tee 3 \
  --no_python -- "$BUILD/04-ddp/fashion_mnist" --checkpoint "$CHECKPOINTS" --json "$LOGS/result.jsonl" "${options[@]}"
