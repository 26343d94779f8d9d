#!/usr/bin/env bash
directives=(--workers 1 -g 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Shows what every process sees, and fails where the pods differ.
# Submit it where runai is logged in: bash 01-environment.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: PROJECT, BUILD, IMAGE, claim, network

: "${PROCESSES:=2}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--require-equal program,libc,kernel}" # EDIT: explore --help lists them
read -ra options <<<"$OPTIONS"
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
exec "$BUILD/01-environment/mnrun" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/01-environment/explore" --json "$LOGS/result.jsonl" "${options[@]}"
