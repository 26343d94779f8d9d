#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--workers 3 -g 0 --backoff-limit 0) # pods beside the master, GPUs of each pod
# Four pods that wait for you: log in to each, and start there what a job script starts. What runs ends with your connection,
# unless it runs in tmux. They keep their GPUs until the job is deleted: runai training pytorch delete interactive
set -euo pipefail
: "${IMAGE:=registry.example.com/multi-node-cpp:latest}" # EDIT: an image with what your programs need
: "${CLAIM:=my-scratch}" # EDIT: the claim of your volume
directives+=(-i "$IMAGE" --large-shm) # for RDMA --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1
echo "Log in to a pod: runai training pytorch bash interactive --pod interactive-master-0, or -worker-0, -worker-1 ..."
[[ -n ${OLD_RUNAI:-} ]] || exec runai training pytorch submit interactive "${directives[@]}" \
  --existing-pvc "claimname=$CLAIM,path=/mnt/scratch" --command -- sleep infinity
exec runai submit-dist pytorch --name interactive "${directives[@]}" --pvc "$CLAIM:/mnt/scratch" --command -- sleep infinity
