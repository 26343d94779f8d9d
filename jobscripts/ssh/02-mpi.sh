#!/usr/bin/env bash
# All-reduce over MPI: how fast is the network, and is every element right?
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
with_all_hosts mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "${tune[@]}" "${program[@]}" "${options[@]}"
