#!/usr/bin/env bash
# As 03-message-passing over NCCL, from GPU memory to GPU memory: in the hostfile, slots is the number of GPUs.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_nccl --help lists them
read -ra options <<<"$OPTIONS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" --output-filename "$LOGS/ranks" \
  env "${variables[@]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/03-message-passing/message_passing_nccl" --json "$LOGS/result.jsonl" "${options[@]}"
