#!/usr/bin/env bash
# Rank 0 sends to every other rank, and each checks every element.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/${PROGRAM:=03-message-passing/message_passing_mpi}" --json "$LOGS/result.jsonl") # EDIT: your program; or PROGRAM=03-message-passing/message_passing_nccl: between GPUs
read -ra options <<<"${OPTIONS:=--count 1M --rounds 10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
with_all_hosts mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "${tune[@]}" "${program[@]}" "${options[@]}"
