#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name interactive --array-type PYTORCH --replicas 2 --total-runtime 1h --port 8888)
# Two replicas that wait for you, with JupyterLab on port 8888. They cost money until the job ends: ngc batch kill JOB_ID.
# The folder that all replicas share is a workspace. Make it once: ngc workspace create --name NAME --ace ACE
set -euo pipefail
: "${IMAGE:=my-org/my-team/multi-node-cpp:latest}"                     # EDIT: an image with what your programs need
: "${ACE:=my-ace}" "${INSTANCE:=dgxa100.80g.8.norm}" "${WORKSPACE:=multi-node-cpp}" # EDIT: yours
: "${COMMAND:=jupyter lab --ip=0.0.0.0 --allow-root --no-browser}"     # or: sleep infinity
echo "When the job runs, log in to its first replica: ngc batch exec JOB_ID"
echo "There, bcprun reaches all replicas: bcprun -no_redirect -c hostname"
exec ngc batch run "${directives[@]}" --image "$IMAGE" --result /mnt/results --commandline "$COMMAND" \
  --ace "$ACE" --instance "$INSTANCE" --workspace "$WORKSPACE:/mnt/workspace:RW"
