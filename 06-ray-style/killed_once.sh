#!/usr/bin/env bash
# Runs a rank of a job, and kills rank 0 (kill -9) in the job's first attempt, when it prints a line with TEXT.
# usage: bash killed_once.sh TEXT PROGRAM [ARGUMENT...]
set -euo pipefail
text=$1
shift
[[ ${RANK:?} = 0 && ${CLUSTER_RESTART_COUNT:?} = 0 ]] || exec "$@"
coproc "$@"
while read -r line; do
  echo "$line"
  if [[ $line = *"$text"* ]]; then
    kill -9 "$COPROC_PID"
    kill -9 $$ # so that the head sees a killed process, and no exit status
  fi
done <&"${COPROC[0]}"
wait "$COPROC_PID"
