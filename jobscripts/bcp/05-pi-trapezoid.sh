#!/usr/bin/env bash
directives=(--name 05-pi-trapezoid --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Integrates 4/(1+x^2) on all processes, and checks pi.
# Submit it where ngc is logged in: bash 05-pi-trapezoid.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, IMAGE, ace, instance, workspace

: "${OPTIONS:=--n 1e9}" # EDIT: pi --help lists them
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/05-pi-trapezoid/pi --json $LOGS/result.jsonl $OPTIONS"
