#!/usr/bin/env bash
# As 03-message-passing by PyTorch's old launcher, as in Lambda's tutorial. With GPUs: message_passing_nccl.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl") # EDIT: your program, such as (python3 -u train.py)
read -ra options <<<"${OPTIONS:=--count 1M --rounds 10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
: "${PYTHON:=python3}" # of an environment with PyTorch; all hosts must see it
for node in "${!hosts[@]}"; do
  start_on "${logins[node]}" "$PYTHON" -m torch.distributed.launch --use_env --no_python --nnodes="${#hosts[@]}" --node_rank="$node" \
    --nproc_per_node="${slots[node]}" --master_addr="${hosts[0]}" --master_port="$MASTER_PORT" \
    "${program[@]}" "${options[@]}"
done
wait_for_all
