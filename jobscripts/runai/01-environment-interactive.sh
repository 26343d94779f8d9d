#!/usr/bin/env bash
directives=(--workers 3 -g 0 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Four pods that wait for you: log in to each, and start there what a job script starts. What runs ends with your connection,
# unless it runs in tmux. They keep their GPUs until the job is deleted: runai training pytorch delete interactive
set -euo pipefail
: "${IMAGE:=registry.example.com/multi-node-cpp:latest}" # EDIT
directives+=(-i "$IMAGE" --large-shm) # EDIT: for RDMA --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1
echo "Log in to a pod: runai training pytorch bash interactive --pod interactive-master-0, or -worker-0, -worker-1 ..."
[[ -n ${OLD_RUNAI:-} ]] || exec runai training pytorch submit interactive "${directives[@]}" \
  --existing-pvc "claimname=${CLAIM:-my-scratch},path=/mnt/scratch" --command -- sleep infinity
exec runai submit-dist pytorch --name interactive "${directives[@]}" --pvc "${CLAIM:-my-scratch}:/mnt/scratch" --command -- sleep infinity
