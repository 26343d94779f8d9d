#!/usr/bin/env bash
# Submits two replicas; on BCP the command starts on the first, and bcprun reaches all.
set -euo pipefail
ngc batch run --name plain --ace my-ace --instance dgxa100.80g.8.norm --image my-org/my-team/multi-node-cpp:latest \
  --array-type PYTORCH --replicas 2 --total-runtime 5m --result /mnt/results --workspace multi-node-cpp:/mnt/workspace:RW \
  --commandline 'bcprun -no_redirect -p 2 -c /mnt/workspace/multi-node-cpp/build/release/01-environment/who_am_i' # EDIT
