#!/usr/bin/env bash
directives=(--name 04-ddp-random-mlp --array-type PYTORCH --replicas 2 --total-runtime 1h) # EDIT
# Trains the tutorial's network of 55.6 million parameters on random numbers.
# Submit it where ngc is logged in: bash 04-ddp-random-mlp.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=--epochs 5 --steps 512}" # EDIT: random_mlp --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/04-ddp/random_mlp --json $LOGS/result.jsonl $OPTIONS"
