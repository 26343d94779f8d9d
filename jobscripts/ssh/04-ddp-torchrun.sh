#!/usr/bin/env bash
# Trains by torchrun with fixed node ranks, one agent on each host, as in the Gadi tutorial.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--epochs 100}" # EDIT: train_ddp --help lists them
read -ra options <<<"$OPTIONS"
: "${TORCHRUN:=torchrun}" # EDIT: its path; all hosts must see it
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
for node in "${!hosts[@]}"; do
  start_on "${hosts[node]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- "$TORCHRUN" --nnodes="${#hosts[@]}" --node_rank="$node" \
    --nproc_per_node="${slots[node]}" --master_addr="${hosts[0]}" --master_port="$MASTER_PORT" --max_restarts 0 \
    --no_python "$BUILD/04-ddp/train_ddp" --json "$LOGS/result.jsonl" "${options[@]}"
done
wait_for_all
