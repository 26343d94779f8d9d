#!/usr/bin/env bash
# Starts a cluster on all hosts of an allocation, and returns when every node is there. On BCP run it on every replica:
# it returns on replica 0, and on the others when the cluster ends. Elsewhere run it once: in Slurm's or PBS's batch
# script, or anywhere with a list of hosts (--hosts, or HOSTS="a b c") that ssh logs in to.
# usage: start_cluster.sh [--hosts a,b,c] [--state DIR] [OPTION of cluster start ...]
# All hosts have to see the state folder (~/.multinode-cluster; on BCP, in the results) and the program: $CLUSTER, else
# `cluster` beside this file or on the PATH. Exit status: 0 all nodes are there, 1 not so, 2 no hosts or no program.
set -euo pipefail

end() { echo "start_cluster.sh: $2" >&2 && exit "$1"; }
list='' state='' options=() replicas=${NGC_ARRAY_SIZE:-0} replica=${NGC_ARRAY_INDEX:-${NGC_REPLICA_ID:-0}}
while (($#)); do
  case $1 in
    --hosts) list=${2:?which hosts?} && shift 2 ;;
    --state) state=$(realpath -m "${2:?which folder?}") && shift 2 ;;
    *) options+=("$1") && shift ;;
  esac
done
cluster=${CLUSTER:-$(dirname "${BASH_SOURCE[0]}")/cluster}
[[ -x $cluster ]] || cluster=$(type -P cluster) || end 2 "no program 'cluster' here or on the PATH; CLUSTER=FILE names it"
cluster=$(realpath "$cluster") host='' block=(--block) # in a batch job a daemon is a step, and ends with the job

# A job's own nodes, whatever HOSTS was where it was submitted.
((replicas)) || [[ -n $list || -n ${SLURM_JOB_NODELIST:-}${PBS_NODEFILE:-} ]] || list=${HOSTS:-}

# at HOST WORD...: a shell's words, run there
if [[ -n $list ]]; then
  found="a list of hosts" block=() replicas=0 replica=0 && read -ra hosts <<<"${list//,/ }"
  at() { ssh -n "$1" "cd ${PWD@Q} && ${*:2}"; }
elif ((replicas)); then
  found="replica $replica of BCP" && mapfile -t hosts < <(seq 0 $((replicas - 1)))
  if ((replicas > 1)); then host=0.0.0.0; else host=127.0.0.1; fi
  ((replica > 0)) || block=()
  state=${state:-${NGC_RESULT_DIR:-/results}/cluster}
  at() { [[ $1 != "$replica" ]] || bash -c "${*:2}" </dev/null; } # each replica does its own part
elif [[ -n ${SLURM_JOB_NODELIST:-} ]]; then
  found="a Slurm job" && mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  at() { srun --overlap -N 1 -n 1 -c "$SLURM_CPUS_ON_NODE" --cpu-bind=none -w "$1" bash -c "${*:2}" </dev/null; }
elif [[ -n ${PBS_NODEFILE:-} ]]; then
  found="a PBS job" && mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE")
  at() { pbs_tmrsh "$1" bash -c "cd ${PWD@Q} && ${*:2}" </dev/null; }
else
  end 2 "no BCP replicas, no Slurm or PBS job, and no --hosts a,b,c"
fi
state=${state:-~/.multinode-cluster} && echo "start_cluster.sh: $found, ${#hosts[@]} nodes"

start() { # host, option ...
  local words=("$cluster" start --state "$state" "${options[@]}" "${@:2}" "${block[@]}")
  if ((${#block[@]})); then at "$1" "${words[@]@Q}" >/dev/null & else at "$1" "${words[@]@Q}" >/dev/null; fi
}
trap '(($? == 0 || replica > 0)) || at "${hosts[0]}" "${cluster@Q} stop --state ${state@Q}" >/dev/null' EXIT
if ((replica == 0)) && ! "$cluster" status --state "$state" --timeout 2 &>/dev/null; then
  rm -f "$state"/{token,address} # of a head that was killed
fi
start "${hosts[0]}" --head --host "${host:-${hosts[0]}}"
until [[ -s $state/address ]] || ((SECONDS > 60)); do sleep 0.1; done
[[ -s $state/address ]] || end 1 "no head came within 60 s; see the logs in $state"
address=$(<"$state/address")
((replicas < 2)) || address=launcher-svc-$NGC_JOB_ID:${address##*:}
for node in "${hosts[@]:1}"; do start "$node" --address "$address"; done
((replica == 0)) || { wait && exit; }
"$cluster" status --state "$state" --wait-for-nodes "${#hosts[@]}"
