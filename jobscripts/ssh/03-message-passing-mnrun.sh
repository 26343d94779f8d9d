#!/usr/bin/env bash
# As 03-message-passing without MPI: over Gloo, by an agent on each host.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--count 1M --rounds 10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
launcher=("$BUILD/01-environment/mnrun") # EDIT: launcher=(torchrun --no-python) without this project's mnrun
for node in "${!hosts[@]}"; do
  start_on "${logins[node]}" "${launcher[@]}" --nnodes "${#hosts[@]}" --node-rank "$node" --nproc-per-node "${slots[node]}" \
    --master-addr "${hosts[0]}" --master-port "$MASTER_PORT" --log-dir "$LOGS" --tee 3 \
    "${program[@]}" "${options[@]}"
done
wait_for_all
