#!/usr/bin/env bash
# Trains by torchrun with fixed node ranks, one agent on each host, as in the Gadi tutorial.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/04-ddp/train_ddp" --json "$LOGS/result.jsonl") # EDIT: your program, such as (python3 -u train.py)
read -ra options <<<"${OPTIONS:=--epochs 100}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
: "${TORCHRUN:=torchrun}" # its path; all hosts must see it
for node in "${!hosts[@]}"; do
  start_on "${logins[node]}" "${tune[@]}" "$TORCHRUN" --nnodes="${#hosts[@]}" --node_rank="$node" \
    --nproc_per_node="${slots[node]}" --master_addr="${hosts[0]}" --master_port="$MASTER_PORT" --max_restarts 0 \
    --no_python "${program[@]}" "${options[@]}"
done
wait_for_all
