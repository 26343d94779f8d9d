#!/usr/bin/env bash
# node0 and node1 let you log in without a password, and see the same folder.
set -euo pipefail
mpirun --map-by slot --timeout 300 -H node0:2,node1:2 "$HOME/multi-node-cpp/build/release/02-mpi/all_reduce" # EDIT: your hosts, your program
