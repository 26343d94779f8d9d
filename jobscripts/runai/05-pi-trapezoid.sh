#!/usr/bin/env bash
directives=(--workers 1 -g 0 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Integrates 4/(1+x^2) on all processes, and checks pi. It needs no GPU.
# Submit it where runai is logged in: bash 05-pi-trapezoid.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=20}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--n 1e9}" # EDIT: pi --help lists them
read -ra options <<<"$OPTIONS"
echo "START TIME: $(date)"
trap 'echo "END TIME: $(date)"' EXIT
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
"$BUILD/01-environment/mnrun" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/05-pi-trapezoid/pi" --json "$LOGS/result.jsonl" "${options[@]}"
