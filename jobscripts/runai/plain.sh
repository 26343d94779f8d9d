#!/usr/bin/env bash
# Starts two pods, and in each a launcher that starts two processes.
set -euo pipefail
runai training pytorch submit plain -i registry.example.com/multi-node-cpp:latest --workers 1 -g 0 \
  --existing-pvc claimname=my-scratch,path=/mnt/scratch --command -- /mnt/scratch/multi-node-cpp/build/release/01-environment/mnrun --secret-file /mnt/scratch/secret \
  --nproc-per-node 2 /mnt/scratch/multi-node-cpp/build/release/01-environment/who_am_i # EDIT
