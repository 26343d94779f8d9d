#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 1 -g 2 --backoff-limit 0) # pods beside the master, GPUs of each pod
# Trains. Submitted again, it resumes from the newest checkpoint in the volume.
# Submit it where runai is logged in: bash 04-ddp.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${PROCESSES:=2}" # per pod: one for each GPU, or core
: "${CHECKPOINTS:=/mnt/scratch/checkpoints/04-ddp}" # another folder for another training
mkdir -p "$CHECKPOINTS"
program=("$BUILD/04-ddp/fashion_mnist" --checkpoint "$CHECKPOINTS" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
exec "${tune[@]}" "${launcher[@]}" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "${program[@]}" "${options[@]}"
