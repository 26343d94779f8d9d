#!/usr/bin/env bash
# Shows what every process sees, and fails where the hosts differ.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--require-equal program,libc,kernel}" # EDIT: explore --help lists them
read -ra options <<<"$OPTIONS"
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" \
  "$BUILD/01-environment/explore" --json "$LOGS/result.jsonl" "${options[@]}"
