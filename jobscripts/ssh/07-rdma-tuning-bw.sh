#!/usr/bin/env bash
# Bus bandwidth with RDMA and without it, for several numbers of processes: the table of the EPFL tutorial. Start it on a host.
# Start it: bash 07-rdma-tuning-bw.sh
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

: "${OPTIONS:=-b 8 -e 4G -f 8}" # EDIT: all_reduce_perf --help lists them
read -ra options <<<"$OPTIONS"
: "${PROCESSES:=2,4}" # EDIT: 2,4,8,16,32 on 4 hosts with 8 GPUs
exec "$BUILD/07-rdma-tuning/rdma_bw" --processes "$PROCESSES" --timeout "$TIME_LIMIT" \
  --launch "mpirun -n {n} --hostfile $HOSTFILE --map-by node --bind-to none" -- "${options[@]}"
