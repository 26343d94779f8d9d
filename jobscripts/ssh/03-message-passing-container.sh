#!/usr/bin/env bash
# As 03-message-passing-mnrun in a container on each host. Copy the image: docker save multinode | ssh node1 docker load
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_gloo --help lists them
read -ra options <<<"$OPTIONS"
: "${ENGINE:=docker}" "${IMAGE:=multinode}" # EDIT: or podman; the image of ci/images/containers build
for node in "${!hosts[@]}"; do
  start_on "${hosts[node]}" "$ENGINE" run --rm --network host --user "$(id -u):$(id -g)" --volume "$LOGS:$LOGS" \
    "$IMAGE" /opt/multinode/01-environment/mnrun \
    --nnodes "${#hosts[@]}" --node-rank "$node" --nproc-per-node "${slots[node]}" --master-addr "${hosts[0]}" --master-port "$MASTER_PORT" --secret-file "$LOGS/secret" \
    /opt/multinode/03-message-passing/message_passing_gloo --json "$LOGS/result.jsonl" "${options[@]}"
done
wait_for_all
