#!/usr/bin/env bash
# Times ./pi_exact with 1, 2, 4, ... processes and prints speed-up and efficiency, each with a bar. usage: bash scaling.sh [MOST]
# Strong scaling: all runs have the same 10^8 intervals. Weak scaling: each process has 2.5 x 10^7 of them.
# MOST is by default the number of cores: with more processes than cores, the table shows the cores and not the program.
# Each time is the lowest of five runs. Exit status: 0 if every run was right, 1 if not.
set -euo pipefail
most=${1:-$(env -u OMP_NUM_THREADS nproc)} # processes

lowest() { # processes, intervals: the lowest time with all processes
  for _ in {1..5}; do mpirun -n "$1" ./pi_exact "$2" || exit 1; done |
    awk -v first="ranks $1:" 'index($0, first) == 1 { print $(NF - 1) }' | sort -g | sed -n 1p
}

table() { # title, strong or weak; a bar of four characters for each process that is fully used, and | at the ideal
  echo "$1"
  echo 'processes   seconds  speed-up  efficiency'
  local one='' processes time
  for ((processes = 1; processes <= most; processes *= 2)); do
    time=$(lowest "$processes" $(($2 == 0 ? 100000000 : $2 * processes)))
    one=${one:-$time}
    awk -v p="$processes" -v t="$time" -v one="$one" -v weak="$2" 'BEGIN {
      speed_up = (weak ? p : 1) * one / t
      for (i = 1; i <= 4 * p || i <= 4 * speed_up + 0.5; ++i) bar = bar (i <= 4 * speed_up + 0.5 ? "#" : " ")
      printf "%9d %9.4f %9.2f %9.0f %%  %s\n", p, t, speed_up, 100 * speed_up / p, bar "|"
    }'
  done
}
table 'strong scaling: 100000000 intervals, whatever the number of processes' 0
table 'weak scaling: 25000000 intervals for each process' 25000000
