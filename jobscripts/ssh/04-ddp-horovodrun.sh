#!/usr/bin/env bash
# Horovod's small program by Horovod's own launcher. Programs without Horovod meet at MASTER_ADDR.
set -euo pipefail
source "$(dirname "$0")/job.sh" # EDIT that file: BUILD, TIME_LIMIT, and the hosts in hostfile

: "${OPTIONS:=--compression none}" # EDIT: horovod_style --help lists them
read -ra options <<<"$OPTIONS"
processes=$(IFS=+ && echo $((${slots[*]})))
list=$(for node in "${!hosts[@]}"; do echo "${hosts[node]}:${slots[node]}"; done | paste -sd,)
# When a process fails, horovodrun ends its ssh to the other hosts, and not what runs there: setpriv ends that with its connection.
exec env "${variables[@]}" "MASTER_ADDR=${hosts[0]}" timeout "$TIME_LIMIT" horovodrun -np "$processes" -H "$list" \
  setpriv --pdeathsig TERM "$BUILD/04-ddp/horovod_style" --json "$LOGS/result.jsonl" "${options[@]}"
