# shellcheck shell=bash disable=SC2034 # per_rank and tune are for the scripts
# What the scripts of this folder begin with: where the programs are, on which hosts they run, how to start one there.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
: "${BUILD:=$HOME/multi-node-cpp/build/release}" # EDIT: the folder of your programs; all hosts must see it
tune=("$BUILD/07-rdma-tuning/rdma_tune" exec --) # EDIT: gives each node its own settings for RDMA, or for sockets; tune=() without this project's rdma_tune
: "${HOSTFILE:=$(dirname "$0")/hostfile}"        # a line for each host, and how many processes there
: "${TIME_LIMIT:=3600}"                          # seconds
: "${LOGS:=$PWD/$(basename "$0" .sh)-$$}"        # one file per rank, and results; all hosts must see it
export MASTER_PORT=$((20000 + $$ % 10000))
mkdir -p "$LOGS"
logins=() hosts=() slots=()
understood='^(([[:alnum:]._-]+@)?[[:alnum:]._-]+)(:|\s+(max[-_]slots\s*=\s*[0-9]+\s+)?slots\s*=\s*)([1-9][0-9]*)(\s+max[-_]slots\s*=\s*[0-9]+)?\s*(#.*)?$'
while read -r line || [[ $line ]]; do # HOST slots=N, or HOST:N, of which mpirun and the other launchers get the same numbers
  [[ $line != '#'* && $line = *[![:space:]]* ]] || continue
  [[ $line =~ $understood && " ${logins[*]} " != *" ${BASH_REMATCH[1]} "* ]] ||
    { echo "$HOSTFILE: '$line' is not USER@HOST slots=N, for N processes, or names a host twice: correct it" >&2 && exit 2; }
  logins+=("${BASH_REMATCH[1]}") hosts+=("${BASH_REMATCH[1]#*@}") slots+=("${BASH_REMATCH[5]}")
  ssh -n -o BatchMode=yes -- "${logins[-1]}" "test -w ${LOGS@Q}" >&2 || # without a password
    { echo "${logins[-1]} cannot write to $LOGS, or refuses the login: set LOGS to a folder that all hosts see" >&2 && exit 1; }
  echo "${logins[-1]} slots=${slots[-1]}"
done <"$HOSTFILE" >"$LOGS/hosts"
((${#hosts[@]})) || { echo "$HOSTFILE names no host: write a line HOST slots=N for each" >&2 && exit 2; }
HOSTFILE=$LOGS/hosts
echo "job $$ on ${hosts[*]}, ${slots[*]} processes, from $(hostname), kernel $(uname -r)"
echo "programs of $BUILD, logs in $LOGS"
variables=("PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}")
per_rank=(--output-filename "$LOGS/ranks")
[[ $(mpirun --version 2>/dev/null) = *'Open MPI) 4'* ]] || per_rank=() # Open MPI 5 would print nothing and change the mode of LOGS; others lack it
for name in "${!NCCL_@}" "${!UCX_@}" "${!OMP_@}" "${!OPENBLAS_@}" "${!MKL_@}"; do variables+=("$name=${!name}"); done # ssh passes none on

start_on() { # host, command ...: in the background. With a terminal (-tt) what runs there ends when its connection does
  local command=("${@:2}")
  trap 'kill "${started[@]}" 2>/dev/null || true' EXIT
  trap 'exit 130' INT TERM HUP
  timeout "$TIME_LIMIT" ssh -tt -o BatchMode=yes -o LogLevel=ERROR -o ServerAliveInterval=5 -- "$1" \
    "cd ${PWD@Q} && exec env ${variables[*]@Q} ${command[*]@Q}" </dev/null &
  started+=($!)
}
wait_for_all() { # the first failure ends all: not every launcher tells the other hosts
  for _ in "${started[@]}"; do wait -n || exit; done
}
with_all_hosts() { # command with mpirun: a program may be right although mpirun starts all processes on one host
  local reached
  reached=$(mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" hostname | sort -u | wc -l)
  ((reached == ${#hosts[@]})) || { echo "mpirun starts processes on $reached of ${#hosts[@]} hosts: correct its mapping policy; set here: ${!OMPI_MCA_rmaps@} ${!PRTE_MCA_rmaps@}" >&2 && exit 1; }
  exec "$@"
}
