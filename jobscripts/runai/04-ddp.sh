#!/usr/bin/env bash
directives=(--workers 1 -g 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Trains. Submitted again, it resumes from the newest checkpoint in the volume.
# Submit it where runai is logged in: bash 04-ddp.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=2}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
: "${CHECKPOINTS:=/mnt/scratch/checkpoints/04-ddp}" # EDIT: another folder for another training
mkdir -p "$CHECKPOINTS"
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/01-environment/mnrun" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/04-ddp/fashion_mnist" --checkpoint "$CHECKPOINTS" --json "$LOGS/result.jsonl" "${options[@]}"
