#!/usr/bin/env bash
# As 03-message-passing by PyTorch's old launcher, as in Lambda's tutorial. With GPUs: message_passing_nccl.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_gloo --help lists them
read -ra options <<<"$OPTIONS"
: "${PYTHON:=python3}" # EDIT: of an environment with PyTorch; all hosts must see it
for node in "${!hosts[@]}"; do
  start_on "${hosts[node]}" "$PYTHON" -m torch.distributed.launch --use_env --no_python --nnodes="${#hosts[@]}" --node_rank="$node" \
    --nproc_per_node="${slots[node]}" --master_addr="${hosts[0]}" --master_port="$MASTER_PORT" \
    "$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl" "${options[@]}"
done
wait_for_all
