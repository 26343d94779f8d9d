#!/usr/bin/env bash
directives=(--name job-03-message-passing --workers 1 --gpu 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Rank 0 sends a message to every other rank, which checks it, on Run:ai.
# bash 03-message-passing.sh submits it where runai is logged in; the pods run the copy of this file that lies in the volume.
set -euo pipefail
: "${PROJECT:=/mnt/scratch/multi-node-cpp}"                # EDIT: where the pods see this project, with this file
: "${BUILD:=$PROJECT/build/release}"                       # EDIT: where it is built
: "${IMAGE:=registry.example.com/multi-node-cpp:latest}"   # EDIT: an image with what the programs need
: "${PROCESSES:=2}"                                        # EDIT: in a pod: one for each GPU, or core
if [[ -z ${RANK:-} ]]; then                                # not yet in a pod; EDIT: claim, network, resource
  # A shell reads once more what follows --. Plain words need nothing; a line of shell wants two pairs of quotes, and a
  # backslash before what only the pod knows: -- bash -c '"echo \$RANK of \$WORLD_SIZE"'
  exec runai submit-dist pytorch "${directives[@]}" --image "$IMAGE" --pvc "${CLAIM:-my-scratch}:/mnt/scratch" \
    --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1 --large-shm \
    -e "PROJECT=$PROJECT" -e "BUILD=$BUILD" -e "IMAGE=$IMAGE" -e "PROCESSES=$PROCESSES" \
    ${OPTIONS+-e "OPTIONS=$OPTIONS"} --command -- bash "$PROJECT/jobscripts/runai/$(basename "$0")"
fi
: "${LOGS:=/mnt/scratch/logs/$JOB_UUID}" # a file for each rank, and results: all pods have to see it
mkdir -p "$LOGS"
echo "job $JOB_UUID, pod $RANK of $WORLD_SIZE, $(hostname), image $IMAGE, kernel $(uname -r)" # RANK counts pods here
echo "programs of $BUILD, logs in $LOGS"

: "${OPTIONS:=--count 1M --rounds 10}" # EDIT: message_passing_gloo --help lists them
read -ra options <<<"$OPTIONS"
# mnrun takes the number of pods, this pod's and the meeting place from WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
exec "$BUILD/01-environment/mnrun" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/03-message-passing/message_passing_gloo" --json "$LOGS/result.jsonl" "${options[@]}"
