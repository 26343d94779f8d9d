#!/usr/bin/env bash
# suspend.sh SECONDS LINE FILE COMMAND...: runs the command until it prints LINE, stops it and all its processes for
# SECONDS, lets them run for 3 s more, as a false alarm takes so long, and creates FILE, which tells the command to end.
# `scontrol suspend` stops the processes of an srun. Prints what the command prints. Exit status: the command's.
set -euo pipefail
seconds=$1 line=$2 file=$3
shift 3
descendants() {
  local children child
  echo "$1"
  read -ra children < <(cat "/proc/$1/task/"*/children 2>/dev/null | tr '\n' ' ' || true) || true
  for child in "${children[@]}"; do descendants "$child"; done
}
output=$(mktemp)
exec 3>"$output"
rm "$output"
"$@" >&3 2>&1 &
command=$!
trap 'cat "/dev/fd/3"; kill -KILL $(descendants "$command") 2>/dev/null || true' EXIT
until grep -q -- "$line" "/proc/$$/fd/3"; do
  kill -0 "$command" 2>/dev/null || break
  sleep 0.1
done
if [[ $1 = srun ]]; then
  scontrol suspend "$SLURM_JOB_ID"
  sleep "$seconds"
  scontrol resume "$SLURM_JOB_ID"
else
  mapfile -t processes < <(descendants "$command")
  kill -STOP "${processes[@]}" || true
  sleep "$seconds"
  kill -CONT "${processes[@]}" || true
fi
sleep 3
touch "$file"
status=0
wait "$command" || status=$?
exit "$status"
