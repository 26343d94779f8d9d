#!/usr/bin/env bash
# networks.sh WORLD_PROGRAM: two ranks meet in a network namespace where (1) the first of the name's addresses does not
# answer, (2) the machine has no IPv4 address besides loopback, at a master and through a file, (3) no interface has the
# address of the machine's name, as behind NAT, and rank 0 alone at such an address. Exit status: 77 if this user cannot
# have such a namespace, or ip is missing.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin # for ip
type -P ip >/dev/null || { echo "no ip: bash ci/setup hosts installs it" && exit 77; }
if [[ ${2:-} != inside ]]; then
  unshare --net --mount --uts true 2>/dev/null || { echo "no network namespace: unshare needs root" && exit 77; }
  exec unshare --net --mount --uts bash "$0" "$1" inside
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ip link set lo up
ip link add six type veth peer name nowhere
ip addr add 2001:db8::1/64 dev six nodad
ip link set nowhere up
ip link set six up
ip neighbour add 2001:db8::2 lladdr 02:00:00:00:00:02 dev six # no host has this address
hostname six
# In getaddrinfo's order IPv6 comes first, and nothing answers at 2001:db8::2.
printf '127.0.0.1 several\n2001:db8::2 several\n2001:db8::1 six\n192.0.2.7 nat\n' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
program=$1

meet() { # arguments of the program; the environment is that of srun on two nodes
  local ranks=() rank
  for rank in 0 1; do
    SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_PROCID=$rank SLURM_LOCALID=0 \
      SLURM_NODEID=$rank "$program" --timeout 8 "$@" &
    ranks+=($!)
  done
  for rank in "${ranks[@]}"; do wait "$rank"; done
}
[[ $(getent ahosts several) == 2001:db8::2* ]] # else the first case is not tested
from=$SECONDS
MASTER_ADDR=several MASTER_PORT=29500 meet
((SECONDS - from < 7)) || { echo "one silent address of two took $((SECONDS - from)) s of 8" && exit 1; }
MASTER_ADDR=six MASTER_PORT=29500 meet
MASTER_ADDR=six MASTER_PORT=1 meet --rendezvous "file:$folder/store"
grep -q 2001:db8::1 "$folder/store"
hostname nat
MASTER_ADDR=six MASTER_PORT=1 meet --rendezvous "file:$folder/store"
RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "$program" --timeout 3 --rendezvous tcp:nat:29501
ip addr del 127.0.0.1/8 dev lo
"$program" --timeout 8 # alone: on ::1
