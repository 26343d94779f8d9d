#!/usr/bin/env bash
directives=(--name 04-ddp --array-type PYTORCH --replicas 2 --total-runtime 1h --preempt RESUMABLE) # EDIT
# Trains. Submitted again, it resumes from the workspace's newest checkpoint.
# As PyTorch Lightning in the tutorial: OPTIONS='--epochs 5 --optimizer adam --patience 3'
# Submit it where ngc is logged in: bash 04-ddp.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: fashion_mnist --help lists them
: "${CHECKPOINTS:=/mnt/workspace/checkpoints/04-ddp}" # EDIT: another folder for another training
mkdir -p "$CHECKPOINTS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/04-ddp/fashion_mnist --checkpoint $CHECKPOINTS --json $LOGS/result.jsonl $OPTIONS"
