#!/usr/bin/env bash
# Shows what every process sees, and fails where the hosts differ.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/01-environment/explore" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--require-equal program,libc,kernel}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
with_all_hosts mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "${program[@]}" "${options[@]}"
