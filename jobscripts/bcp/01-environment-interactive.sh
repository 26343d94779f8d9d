#!/usr/bin/env bash
directives=(--name interactive --array-type PYTORCH --replicas 2 --total-runtime 1h --port 8888) # EDIT
# Two replicas that wait for you, with JupyterLab on port 8888. They cost money until the job ends: ngc batch kill JOB_ID.
# The folder that all replicas share is a workspace. Make it once: ngc workspace create --name multi-node-cpp --ace my-ace
set -euo pipefail
: "${IMAGE:=my-org/my-team/multi-node-cpp:latest}"                     # EDIT: an image with what the programs need
: "${COMMAND:=jupyter lab --ip=0.0.0.0 --allow-root --no-browser}"     # or: sleep infinity
echo "When the job runs, log in to its first replica: ngc batch exec JOB_ID"
echo "There, bcprun reaches all replicas: bcprun -no_redirect -c hostname"
exec ngc batch run "${directives[@]}" --image "$IMAGE" --result /mnt/results --commandline "$COMMAND" \
  --ace "${ACE:-my-ace}" --instance "${INSTANCE:-dgxa100.80g.8.norm}" --workspace "${WORKSPACE:-multi-node-cpp}:/mnt/workspace:RW"
