#!/usr/bin/env bash
# communicator_ranks.sh N COMMAND...: runs N ranks on this machine without a launcher. Exit status: the first that is not
# 0, else 0.
set -euo pipefail
ranks=$1
shift
folder=$(mktemp -d) pids=()
trap 'rm -rf "$folder"' EXIT
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=1 \
    "$@" --rendezvous "file:$folder/store" & pids+=($!)
done
status=0
for ((rank = 0; rank < ranks; ++rank)); do
  one=0
  wait -n || one=$?
  # A rank that has just ended can be missed by wait -n, but not by its pid.
  ((one != 127)) || { one=0 && for pid in "${pids[@]}"; do wait "$pid" || one=$?; done; }
  if ((status == 0)); then status=$one; fi
done
exit "$status"
