#!/usr/bin/env bash
# A node of a Ray cluster, in the foreground. Node 0 is the head; the others wait for its port.
# usage: ray_node.sh NODE HEAD_HOST:PORT CPUS
set -euo pipefail
# Another Ray may run on the node. So the system chooses the workers' ports, of a range that begins at 10002 else, and there is no
# dashboard, which wants port 8265.
options=(--num-cpus="$3" --min-worker-port=0 --max-worker-port=0 --block)
(($1)) || exec ray start --head --include-dashboard=false --port="${2#*:}" "${options[@]}"
until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done
exec ray start --address="$2" "${options[@]}"
