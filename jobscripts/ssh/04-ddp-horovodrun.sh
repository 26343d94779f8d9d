#!/usr/bin/env bash
# Horovod's small program by Horovod's own launcher. Programs without Horovod meet at MASTER_ADDR.
# Start it: bash 04-ddp-horovodrun.sh
set -euo pipefail
: "${BUILD:=$HOME/multi-node-cpp/build/release}" # EDIT: where the project is built; all hosts must see this folder
: "${HOSTFILE:=$(dirname "$0")/hostfile}"        # EDIT that file: a line for each host, and how many processes there
: "${TIME_LIMIT:=3600}"                          # EDIT: seconds
: "${LOGS:=$PWD/$(basename "$0" .sh)-$$}"        # one file per rank, and results; all hosts must see it
export MASTER_PORT=$((20000 + $$ % 10000))
mkdir -p "$LOGS"
listed=$(awk '/^[^#].* slots=/ { print $1 }' "$HOSTFILE")
mapfile -t hosts <<<"$listed"
mapfile -t slots < <(sed -n 's/^[^#].* slots=//p' "$HOSTFILE")
for host in "${hosts[@]}"; do ssh -n -o BatchMode=yes "$host" true; done # without a password
echo "job $$ on ${hosts[*]}, ${slots[*]} processes, from $(hostname), kernel $(uname -r)"
echo "programs of $BUILD, logs in $LOGS"
variables=("PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}")
for name in "${!NCCL_@}" "${!UCX_@}"; do variables+=("$name=${!name}"); done # ssh passes none on

: "${OPTIONS:=--compression none}" # EDIT: horovod_style --help lists them
read -ra options <<<"$OPTIONS"
processes=$(IFS=+ && echo $((${slots[*]})))
list=$(for node in "${!hosts[@]}"; do echo "${hosts[node]}:${slots[node]}"; done | paste -sd,)
exec env "${variables[@]}" "MASTER_ADDR=${hosts[0]}" timeout "$TIME_LIMIT" horovodrun -np "$processes" -H "$list" \
  "$BUILD/04-ddp/horovod_style" --json "$LOGS/result.jsonl" "${options[@]}"
