#!/usr/bin/env bash
# As 03-message-passing by PyTorch's old launcher, as in Lambda's tutorial. With GPUs: message_passing_nccl.
# Start it: bash 03-message-passing-torchrun.sh
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

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_gloo --help lists them
read -ra options <<<"$OPTIONS"
: "${PYTHON:=python3}" # EDIT: of an environment with PyTorch; all hosts must see it
trap 'kill "${agents[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
for node in "${!hosts[@]}"; do
  agent=("$PYTHON" -m torch.distributed.launch --use_env --no_python --nnodes="${#hosts[@]}" --node_rank="$node"
    --nproc_per_node="${slots[node]}" --master_addr="${hosts[0]}" --master_port="$MASTER_PORT"
    "$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl" "${options[@]}")
  # With a terminal (-tt) what runs there ends when its connection does.
  timeout "$TIME_LIMIT" ssh -tt -o BatchMode=yes -o LogLevel=ERROR -o ServerAliveInterval=5 "${hosts[node]}" \
    "cd ${PWD@Q} && exec env ${variables[*]@Q} ${agent[*]@Q}" </dev/null &
  agents+=($!)
done
for _ in "${agents[@]}"; do wait -n || exit; done # the first failure ends all: not every launcher tells the other hosts
