#!/usr/bin/env bash
# Starts a Ray cluster on the hosts, trains on it, and stops it.
# Start it: bash 06-ray-style.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--epochs 3}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all hosts must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}"
PATH=$RAY/bin:$PATH ray get-auth-token --generate >/dev/null # a token in ~/.ray, which all nodes must see: without it anybody can start programs
variables+=(RAY_AUTH_MODE=token)
# shellcheck disable=SC2016 # each node expands it: $1 is its number, $2 the head's HOST:PORT
ray_node='(($1)) || exec ray start --head --port="${2#*:}" --num-cpus="$3" --block
until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done # the head first
exec ray start --address="$2" --num-cpus="$3" --block'
for node in "${!hosts[@]}"; do
  start_on "${hosts[node]}" env "PATH=$RAY/bin:$PATH" bash -c "$ray_node" ray_node "$node" "${hosts[0]}:$MASTER_PORT" "${slots[node]}"
done
processes=$(IFS=+ && echo $((${slots[*]})))
# shellcheck disable=SC2016
start_on "${hosts[0]}" env "PATH=$RAY/bin:$PATH" "RAY_ADDRESS=${hosts[0]}:$MASTER_PORT" bash -c 'until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do sleep 1; done
  exec python3 "$@"' - "$TRAIN" --num-workers="$processes" "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl" "${options[@]}"
wait -n # for the first that ends: the training, or a node of the cluster
