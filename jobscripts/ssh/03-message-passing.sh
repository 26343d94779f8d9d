#!/usr/bin/env bash
# Rank 0 sends to every other rank, and each checks every element.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${PROGRAM:=03-message-passing/message_passing_mpi}" # EDIT: or 03-message-passing/message_passing_nccl: between GPUs
: "${OPTIONS:=--count 1M --rounds 10}"                 # EDIT: the program's --help lists them
read -ra options <<<"$OPTIONS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/$PROGRAM" --json "$LOGS/result.jsonl" "${options[@]}"
