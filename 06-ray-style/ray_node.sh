#!/usr/bin/env bash
# A node of a Ray cluster, in the foreground. Node 0 is the head; the others wait for its port.
# usage: ray_node.sh NODE HEAD_HOST:PORT CPUS
set -euo pipefail
(($1)) || exec ray start --head --port="${2#*:}" --num-cpus="$3" --block
until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done
exec ray start --address="$2" --num-cpus="$3" --block
