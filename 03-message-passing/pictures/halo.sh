#!/usr/bin/env bash
# Draws some steps of heat on two test hosts that are 1 ms apart. usage: bash halo.sh PICTURE FROM TO, in the root folder of
# the clone, as root. On two nodes: mpirun -H node0,node1 who_waits --from FROM --to TO --timeline PICTURE.svg -- heat 1000000
set -euo pipefail
hosts=ci/test-cluster/hosts
bash $hosts with 2 --here -- bash -c "bash $hosts slow node1 --delay 1ms && bash $hosts run node0 \
  mpirun -H node0,node1 who_waits --from '$2' --to '$3' --timeline '$1.svg' -- heat 1000000"
