#!/usr/bin/env bash
# Integrates for pi on all processes; the result is the same to the last bit on any number of them.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--n 1e10}" # EDIT: pi --help lists them
read -ra options <<<"$OPTIONS"
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" \
  "$BUILD/05-pi-trapezoid/pi" --json "$LOGS/result.jsonl" "${options[@]}"
