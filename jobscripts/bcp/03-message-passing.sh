#!/usr/bin/env bash
directives=(--name 03-message-passing --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Rank 0 sends a message to every other rank, which checks it.
# Submit it where ngc is logged in: bash 03-message-passing.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_gloo --help lists them
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/03-message-passing/message_passing_gloo --json $LOGS/result.jsonl $OPTIONS"
