#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 05-pi-trapezoid --array-type PYTORCH --replicas 2 --total-runtime 10m)
# Integrates 4/(1+x^2) on all processes, and checks pi.
# Submit it where ngc is logged in: bash 05-pi-trapezoid.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

program="$BUILD/05-pi-trapezoid/pi --json $LOGS/result.jsonl ${OPTIONS:=--n 1e9}" # EDIT: your program and its options (--help lists them)
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$program"
