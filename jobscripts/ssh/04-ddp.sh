#!/usr/bin/env bash
# Data-parallel training with checkpoints. LOGS=FOLDER resumes from the newest checkpoint of an earlier job.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/04-ddp/fashion_mnist" --checkpoint "$LOGS/checkpoints" --json "$LOGS/result.jsonl" "${options[@]}"
