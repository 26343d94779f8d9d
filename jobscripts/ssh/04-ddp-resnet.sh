#!/usr/bin/env bash
# Trains a ResNet on CIFAR-10 (--data), or on random images (--use-syn); needs a build with libtorch.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--arch resnet18 --use-syn --image-size 32}" # EDIT: resnet --help lists them
read -ra options <<<"$OPTIONS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/04-ddp/resnet" --model-dir "$LOGS" --json "$LOGS/result.jsonl" "${options[@]}"
