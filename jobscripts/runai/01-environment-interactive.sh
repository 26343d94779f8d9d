#!/usr/bin/env bash
directives=(--name interactive --workers 1 --gpu 2) # EDIT: pods beside the master, GPUs of each pod
# Pods that wait for you: log in to each, and start there what a job script starts. What runs ends with your connection,
# unless it runs in tmux. They keep their GPUs until the job is deleted.
set -euo pipefail
: "${PROJECT:=/mnt/scratch/multi-node-cpp}"                # EDIT: where the pods see this project
: "${IMAGE:=registry.example.com/multi-node-cpp:latest}"   # EDIT: an image with what the programs need

cat <<HELP
When the pods are there, in one window each:
  runai exec interactive --pod interactive-master-0 -it -- bash $PROJECT/jobscripts/runai/01-environment.sh
  runai exec interactive --pod interactive-worker-0 -it -- bash $PROJECT/jobscripts/runai/01-environment.sh
or bash alone, for a prompt. At last: runai delete job interactive
HELP
exec runai submit-dist pytorch "${directives[@]}" --image "$IMAGE" --pvc "${CLAIM:-my-scratch}:/mnt/scratch" \
  --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1 --large-shm \
  -e "PROJECT=$PROJECT" ${BUILD+-e "BUILD=$BUILD"} ${OPTIONS+-e "OPTIONS=$OPTIONS"} -- "sleep infinity"
