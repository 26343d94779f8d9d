#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 0 --backoff-limit 0) # pods beside the master, GPUs of each pod
# Integrates 4/(1+x^2) on all processes, and checks pi. It needs no GPU.
# Submit it where runai is logged in: bash 05-pi-trapezoid.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=20}" # per pod: one for each GPU, or core
program=("$BUILD/05-pi-trapezoid/pi" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--n 1e9}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
echo "START TIME: $(date)"
trap 'echo "END TIME: $(date)"' EXIT
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
"${launcher[@]}" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "${program[@]}" "${options[@]}"
