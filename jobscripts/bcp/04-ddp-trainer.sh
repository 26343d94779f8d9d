#!/usr/bin/env bash
directives=(--name 04-ddp-trainer --array-type PYTORCH --replicas 2 --total-runtime 1h) # EDIT
# Trains with a trainer that has the loop, as PyTorch Lightning does.
# Submit it where ngc is logged in: bash 04-ddp-trainer.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=--epochs 5 --optimizer adam --patience 3}" # EDIT: fashion_mnist --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/04-ddp/fashion_mnist --json $LOGS/result.jsonl $OPTIONS"
