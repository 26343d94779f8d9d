#!/usr/bin/env bash
# Starts a Ray cluster on the hosts, trains on it, and stops it.
# Start it: bash 06-ray-style.sh
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

: "${OPTIONS:=--epochs 3}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all hosts must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}"
PATH=$RAY/bin:$PATH ray get-auth-token --generate >/dev/null # a token in ~/.ray, which all nodes must see: without it anybody can start programs
variables+=(RAY_AUTH_MODE=token)
# shellcheck disable=SC2016 # each node expands it: $1 is its number, $2 the head's HOST:PORT
ray_node='(($1)) || exec ray start --head --port="${2#*:}" --num-cpus="$3" --block
until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done # the head first
exec ray start --address="$2" --num-cpus="$3" --block'
trap 'kill "${agents[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
for node in "${!hosts[@]}"; do
  agent=(env "PATH=$RAY/bin:$PATH" bash -c "$ray_node" ray_node "$node" "${hosts[0]}:$MASTER_PORT" "${slots[node]}")
  # With a terminal (-tt) what runs there ends when its connection does.
  timeout "$TIME_LIMIT" ssh -tt -o BatchMode=yes -o LogLevel=ERROR -o ServerAliveInterval=5 "${hosts[node]}" \
    "cd ${PWD@Q} && exec env ${variables[*]@Q} ${agent[*]@Q}" </dev/null &
  agents+=($!)
done
processes=$(IFS=+ && echo $((${slots[*]})))
# shellcheck disable=SC2016
driver=(env "PATH=$RAY/bin:$PATH" RAY_AUTH_MODE=token "RAY_ADDRESS=${hosts[0]}:$MASTER_PORT" bash -c 'until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do sleep 1; done
  exec python3 "$@"' - "$TRAIN" --num-workers="$processes" "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl" "${options[@]}")
timeout "$TIME_LIMIT" ssh -tt -o BatchMode=yes -o LogLevel=ERROR "${hosts[0]}" "cd ${PWD@Q} && exec ${driver[*]@Q}" </dev/null &
wait -n # for the first that ends: the training, or a node of the cluster
