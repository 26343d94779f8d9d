#!/usr/bin/env bash
# Starts a Ray cluster on the hosts, trains on it, and stops it.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all hosts must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}" # EDIT: your program for Ray; copy ray_node.sh beside it
(umask 077 && PATH=$RAY/bin:$PATH ray get-auth-token --generate >/dev/null) # a token in ~/.ray, which all nodes must see: without it anybody can start programs
chmod 600 "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}" # Ray made it readable for all users
variables+=(RAY_AUTH_MODE=token)
for node in "${!hosts[@]}"; do
  start_on "${logins[node]}" env "PATH=$RAY/bin:$PATH" bash "${TRAIN%/*}/ray_node.sh" "$node" "${hosts[0]}:$MASTER_PORT" "${slots[node]}"
done
processes=$(IFS=+ && echo $((${slots[*]})))
program=(python3 "$TRAIN" --num-workers="$processes" "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl") # EDIT: how it starts; with GPUs add --gpus-per-worker=1
read -ra options <<<"${OPTIONS:=--epochs 3}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
# shellcheck disable=SC2016
start_on "${logins[0]}" env "PATH=$RAY/bin:$PATH" "RAY_ADDRESS=${hosts[0]}:$MASTER_PORT" bash -c 'until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do sleep 1; done
  exec "$@"' - "${program[@]}" "${options[@]}"
wait -n # for the first that ends: the training, or a node of the cluster
