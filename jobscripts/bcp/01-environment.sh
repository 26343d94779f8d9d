#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 01-environment --array-type PYTORCH --replicas 2 --total-runtime 10m)
# Shows what every process sees, and fails where the replicas differ.
# Submit it where ngc is logged in: bash 01-environment.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

program="$BUILD/01-environment/explore --json $LOGS/result.jsonl ${OPTIONS:=--require-equal program,libc,kernel}" # EDIT: your program and its options (--help lists them)
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$program"
