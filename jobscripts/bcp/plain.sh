#!/usr/bin/env bash
# Submits two replicas; on BCP the command starts on the first, and bcprun reaches all.
set -euo pipefail
ace=my-ace workspace=multi-node-cpp image=my-org/my-team/multi-node-cpp:latest # EDIT: yours
program=/mnt/workspace/multi-node-cpp/build/release/01-environment/who_am_i # EDIT: your program, in the workspace
ngc batch run --name plain --ace "$ace" --instance dgxa100.80g.8.norm --image "$image" --array-type PYTORCH --replicas 2 --total-runtime 5m \
  --result /mnt/results --workspace "$workspace:/mnt/workspace:RW" --commandline "bcprun -no_redirect -p 2 -c '$program'"
