#!/usr/bin/env bash
# As 03-message-passing without MPI: over Gloo, by an agent on each host.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_gloo --help lists them
read -ra options <<<"$OPTIONS"
for node in "${!hosts[@]}"; do
  start_on "${hosts[node]}" "$BUILD/01-environment/mnrun" --nnodes "${#hosts[@]}" --node-rank "$node" --nproc-per-node "${slots[node]}" \
    --master-addr "${hosts[0]}" --master-port "$MASTER_PORT" --log-dir "$LOGS" --tee 3 \
    "$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl" "${options[@]}"
done
wait_for_all
