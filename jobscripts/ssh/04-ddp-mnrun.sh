#!/usr/bin/env bash
# As 04-ddp without MPI: over NCCL or Gloo, by an agent on each host.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
for node in "${!hosts[@]}"; do
  start_on "${hosts[node]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
    "$BUILD/01-environment/mnrun" --nnodes "${#hosts[@]}" --node-rank "$node" --nproc-per-node "${slots[node]}" \
    --master-addr "${hosts[0]}" --master-port "$MASTER_PORT" --log-dir "$LOGS" --tee 3 \
    "$BUILD/04-ddp/fashion_mnist" --checkpoint "$LOGS/checkpoints" --json "$LOGS/result.jsonl" "${options[@]}"
done
wait_for_all
