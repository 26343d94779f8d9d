#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 03-message-passing --array-type PYTORCH --replicas 2 --total-runtime 10m)
# Rank 0 sends a message to every other rank, which checks it.
# Submit it where ngc is logged in: bash 03-message-passing.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

program="$BUILD/03-message-passing/message_passing_gloo --json $LOGS/result.jsonl ${OPTIONS:=--count 1M --rounds 10}" # EDIT: your program and its options (--help lists them)
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$program"
