#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 04-ddp-random-mlp --array-type PYTORCH --replicas 2 --total-runtime 1h)
# Trains the tutorial's network of 55.6 million parameters on random numbers.
# Submit it where ngc is logged in: bash 04-ddp-random-mlp.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

program="$BUILD/04-ddp/random_mlp --json $LOGS/result.jsonl ${OPTIONS:=--epochs 5 --steps 512}" # EDIT: your program and its options (--help lists them)
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "${tune[*]} $program"
