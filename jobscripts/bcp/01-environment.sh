#!/usr/bin/env bash
directives=(--name 01-environment --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Shows what every process sees, and fails where the replicas differ.
# Submit it where ngc is logged in: bash 01-environment.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=--require-equal program,libc,kernel}" # EDIT: explore --help lists them
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/01-environment/explore --json $LOGS/result.jsonl $OPTIONS"
