#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 2 --backoff-limit 0) # pods beside the master, GPUs of each pod
# The master pod starts Ray's head, the others join it; trains on them, and ends all pods.
# Submit it where runai is logged in: bash 06-ray-style.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=2}" # per pod: one for each GPU, or core
: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all pods must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}" # EDIT: your program for Ray; copy ray_node.sh beside it
program=(python3 "$TRAIN" --num-workers=$((WORLD_SIZE * PROCESSES)) "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl") # EDIT: how it starts; with GPUs add --gpus-per-worker=1
read -ra options <<<"${OPTIONS:=--epochs 3}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
export PATH=$RAY/bin:$PATH RAY_ADDRESS=$MASTER_ADDR:$MASTER_PORT RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$LOGS/token
((RANK)) || (umask 077 && rm -f "$LOGS/token" && set -C && od -An -N 32 -t x1 /dev/urandom | tr -d ' \n' >"$LOGS/token") # without it anybody can start programs
((RANK == 0)) || exec bash "${TRAIN%/*}/ray_node.sh" "$RANK" "$RAY_ADDRESS" "$PROCESSES"
bash "${TRAIN%/*}/ray_node.sh" 0 "$RAY_ADDRESS" "$PROCESSES" &
trap 'kill $! && wait || true' EXIT
until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do kill -0 $! || exit 1; sleep 1; done
"${program[@]}" "${options[@]}"
