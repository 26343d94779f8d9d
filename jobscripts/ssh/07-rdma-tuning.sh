#!/usr/bin/env bash
# Compares the hosts' RDMA, looks for faults, measures, and shows whether the traffic used RDMA. Start it on one of the hosts.
# Start it: bash 07-rdma-tuning.sh
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

: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
read -ra options <<<"$OPTIONS"
tune=$BUILD/07-rdma-tuning/rdma_tune
mpirun --hostfile "$HOSTFILE" --npernode 1 "$tune" compare
mpirun --hostfile "$HOSTFILE" --npernode 1 "$tune" check
: "${REQUIRE:=}" # EDIT: rdma: the job fails unless this host's traffic used RDMA
# verify reads the counters of this host; exec gives each host its own settings.
exec "$tune" verify ${REQUIRE:+--require "$REQUIRE"} -- \
  mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" --output-filename "$LOGS/ranks" \
  env "${variables[@]}" "$tune" exec -- "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
