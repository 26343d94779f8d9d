#!/usr/bin/env bash
# A node of a Ray cluster, in the foreground. Node 0 is the head; the others wait for its port. Each needs the cluster's token.
# usage: ray_node.sh NODE HEAD_HOST:PORT CPUS
set -euo pipefail
(($1 == 0)) || until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done
file=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
token=${RAY_AUTH_TOKEN:-$(cat "$file" 2>/dev/null)} || true
[[ ${RAY_AUTH_MODE:-} = token && -n $token ]] ||
  { echo "ray_node.sh: RAY_AUTH_MODE is not token, or $file is empty or missing: anybody could start programs here, so make a token" >&2 && exit 1; }
# Ray makes all folders below this one writable for all users. Its name is the same on all nodes, where Ray uses the head's, and
# nobody guesses it. It is short, because a socket's path has at most 107 bytes.
name=ray-$(sha256sum <<<"${2#*:} $token" | cut -c 1-16)
export RAY_TMPDIR=${RAY_TMPDIR:-/tmp/$name}
mkdir -m 700 "$RAY_TMPDIR" 2>/dev/null || [[ -O $RAY_TMPDIR && $(stat -c %a "$RAY_TMPDIR") = 700 ]] ||
  { echo "ray_node.sh: $RAY_TMPDIR is not a folder of yours with mode 700: remove it, or set RAY_TMPDIR to another" >&2 && exit 1; }
# Another Ray may run on the node. So the system chooses the workers' ports, of a range that begins at 10002 else, and there is no
# dashboard, which wants port 8265.
options=(--num-cpus="$3" --min-worker-port=0 --max-worker-port=0 --block)
(($1)) || exec ray start --head --include-dashboard=false --port="${2#*:}" "${options[@]}"
exec ray start --address="$2" "${options[@]}"
