#!/usr/bin/env bash
# As 03-message-passing-mnrun in a container on each host. Copy the image: docker save multinode | ssh node1 docker load
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=(/opt/multinode/03-message-passing/message_passing_gloo --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--count 1M --rounds 10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
launcher=(/opt/multinode/01-environment/mnrun --secret-file "$LOGS/secret") # EDIT: launcher=(torchrun --no-python) without this project's mnrun
: "${IMAGE:=multinode}" # EDIT: your image; this one is of ci/images/containers build
: "${ENGINE:=docker}" # or podman
for node in "${!hosts[@]}"; do
  start_on "${logins[node]}" "$ENGINE" run --rm --network host --user "$(id -u):$(id -g)" --volume "$LOGS:$LOGS" \
    "$IMAGE" "${launcher[@]}" --nnodes "${#hosts[@]}" --node-rank "$node" --nproc-per-node "${slots[node]}" --master-addr "${hosts[0]}" --master-port "$MASTER_PORT" \
    "${program[@]}" "${options[@]}"
done
wait_for_all
