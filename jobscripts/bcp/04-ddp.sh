#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 04-ddp --array-type PYTORCH --replicas 2 --total-runtime 1h --preempt RESUMABLE)
# Trains. Submitted again, it resumes from the workspace's newest checkpoint.
# As PyTorch Lightning in the tutorial: OPTIONS='--epochs 5 --optimizer adam --patience 3'
# Submit it where ngc is logged in: bash 04-ddp.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${CHECKPOINTS:=/mnt/workspace/checkpoints/04-ddp}" # another folder for another training
mkdir -p "$CHECKPOINTS"
program="$BUILD/04-ddp/fashion_mnist --checkpoint $CHECKPOINTS --json $LOGS/result.jsonl ${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: your program and its options (--help lists them)
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "${tune[*]} $program"
