#!/usr/bin/env bash
# Horovod's small program by Horovod's own launcher. Programs without Horovod meet at MASTER_ADDR.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/04-ddp/horovod_style" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--compression none}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
processes=$(IFS=+ && echo $((${slots[*]})))
list=$(for node in "${!hosts[@]}"; do echo "${hosts[node]}:${slots[node]}"; done | paste -sd,)
# When a process fails, horovodrun ends its ssh to the other hosts, and not what runs there: setpriv ends that with its connection.
exec env "${variables[@]}" "MASTER_ADDR=${hosts[0]}" timeout "$TIME_LIMIT" horovodrun -np "$processes" -H "$list" \
  setpriv --pdeathsig TERM "${program[@]}" "${options[@]}"
