#!/usr/bin/env bash
# Integrates for pi on all processes; the result is the same to the last bit on any number of them.
# Start it: bash 05-pi-trapezoid.sh
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

: "${OPTIONS:=--n 1e10}" # EDIT: pi --help lists them
read -ra options <<<"$OPTIONS"
exec mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" --output-filename "$LOGS/ranks" \
  env "${variables[@]}" \
  "$BUILD/05-pi-trapezoid/pi" --json "$LOGS/result.jsonl" "${options[@]}"
