#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 06-ray-style --array-type PYTORCH --replicas 2 --total-runtime 10m)
# Starts a Ray cluster on the replicas, trains on it, and stops it.
# Submit it where ngc is logged in: bash 06-ray-style.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all replicas must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}" # EDIT: your program for Ray; copy ray_node.sh beside it
program=(python3 "$TRAIN" --num-workers=$((NGC_ARRAY_SIZE * NGC_GPUS_PER_NODE)) "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl") # EDIT: how it starts; with GPUs add --gpus-per-worker=1
read -ra options <<<"${OPTIONS:=--epochs 3}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
export PATH=$RAY/bin:$PATH RAY_ADDRESS=$NGC_MASTER_ADDR:6379 RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$LOGS/token
(umask 077 && rm -f "$LOGS/token" && set -C && od -An -N 32 -t x1 /dev/urandom | tr -d ' \n' >"$LOGS/token") # without it anybody can start programs
"${bcprun[@]}" -p 1 -e "PATH=$PATH" -e RAY_AUTH_MODE=token -e "RAY_AUTH_TOKEN_PATH=$LOGS/token" \
  -c "bash ${TRAIN%/*}/ray_node.sh \$NGC_ARRAY_INDEX $RAY_ADDRESS $NGC_GPUS_PER_NODE" & # it stays
trap 'kill $! && wait || true' EXIT
until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do kill -0 $! || exit 1; sleep 1; done
"${program[@]}" "${options[@]}"
