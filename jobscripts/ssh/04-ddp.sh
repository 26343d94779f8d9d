#!/usr/bin/env bash
# Data-parallel training with checkpoints. LOGS=FOLDER resumes from the newest checkpoint of an earlier job.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/04-ddp/fashion_mnist" --checkpoint "$LOGS/checkpoints" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
with_all_hosts mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "${tune[@]}" "${program[@]}" "${options[@]}"
