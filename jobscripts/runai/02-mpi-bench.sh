#!/usr/bin/env bash
directives=(--workers 1 -g 8 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Bandwidth of one all-reduce of 4 GB over NCCL as one number, by torchrun as in the tutorial.
# Submit it where runai is logged in: bash 02-mpi-bench.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=8}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--trials 10}" # EDIT: all_reduce_bench --help lists them
read -ra options <<<"$OPTIONS"
: "${TORCHRUN:=torchrun}" # EDIT: its path in the image
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec "$BUILD/07-rdma-tuning/rdma_tune" exec -- "$TORCHRUN" --nnodes "$WORLD_SIZE" --node_rank "$RANK" --nproc_per_node "$PROCESSES" --max_restarts 0 \
  --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" --role "$(hostname -s | tr -dc '0-9'):" --log_dir "$LOGS" --tee 3 \
  --no_python -- "$BUILD/02-mpi/all_reduce_bench" --json "$LOGS/result.jsonl" "${options[@]}"
