#!/usr/bin/env bash
directives=(--workers 1 -g 0 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# As 05-pi-trapezoid with torchrun, for an image that has PyTorch, as in the tutorial.
# Submit it where runai is logged in: bash 05-pi-trapezoid-torchrun.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=20}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--n 1e9}" # EDIT: pi --help lists them
read -ra options <<<"$OPTIONS"
echo "START TIME: $(date)"
trap 'echo "END TIME: $(date)"' EXIT
: "${TORCHRUN:=torchrun}" # EDIT: its path in the image
"$TORCHRUN" --nnodes "$WORLD_SIZE" --node_rank "$RANK" --nproc_per_node "$PROCESSES" --max_restarts 0 \
  --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" --role "$(hostname -s | tr -dc '0-9'):" --log_dir "$LOGS" --tee 3 \
  --no_python -- "$BUILD/05-pi-trapezoid/pi" --json "$LOGS/result.jsonl" "${options[@]}"
