#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 2 --backoff-limit 0) # pods beside the master, GPUs of each pod
# Rank 0 sends a message to every other rank, which checks it.
# Submit it where runai is logged in: bash 03-message-passing.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=2}" # per pod: one for each GPU, or core
program=("$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--count 1M --rounds 10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
exec "${launcher[@]}" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "${program[@]}" "${options[@]}"
