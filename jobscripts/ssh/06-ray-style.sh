#!/usr/bin/env bash
# A cluster: a head and a node on each host; a training is submitted to it, and all is stopped.
# Start it: bash 06-ray-style.sh
set -euo pipefail
: "${BUILD:=$HOME/multi-node-cpp/build/release}" # EDIT: where the project is built; all hosts have to see it
: "${HOSTFILE:=$(dirname "$0")/hostfile}"        # EDIT that file: a line for each host, and how many processes there
: "${TIME_LIMIT:=3600}"                          # EDIT: seconds
: "${LOGS:=$PWD/$(basename "$0" .sh)-$$}"        # a file for each rank, and results: all hosts have to see it
export MASTER_PORT=$((10000 + $$ % 20000))
mkdir -p "$LOGS"
listed=$(awk '/^[^#].* slots=/ { print $1 }' "$HOSTFILE")
mapfile -t hosts <<<"$listed"
for host in "${hosts[@]}"; do ssh -n -o BatchMode=yes "$host" true; done # without a password
image=$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release)
echo "job $$ on ${hosts[*]}, from $(hostname), $image, kernel $(uname -r)"
echo "programs of $BUILD, logs in $LOGS"
variables=("PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}")
for name in "${!NCCL_@}" "${!UCX_@}"; do variables+=("$name=${!name}"); done # ssh passes none on

: "${OPTIONS:=--epochs 3}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
mapfile -t slots < <(sed -n 's/^[^#].* slots=//p' "$HOSTFILE")
state=$LOGS/state cluster=$BUILD/06-ray-style/cluster
trap 'ssh -n "${hosts[0]}" "${cluster@Q} stop --state ${state@Q}"' EXIT
trap 'exit 130' INT TERM HUP
HOSTS=${hosts[*]} "$BUILD/06-ray-style/start_cluster.sh" --state "$state" --num-cpus "${slots[0]}" --port 0
submit=("$cluster" submit --state "$state" --num-workers $((${#hosts[@]} * slots[0])) --json "$LOGS/result.jsonl")
timeout "$TIME_LIMIT" "${submit[@]}" -- fashion_mnist --backend gloo "${options[@]}" &
wait $! # not in the foreground: bash would heed a signal at its end only
