#!/usr/bin/env bash
# Integrates for pi on all processes; the result is the same to the last bit on any number of them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/05-pi-trapezoid/pi" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--n 1e10}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
with_all_hosts mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "${program[@]}" "${options[@]}"
