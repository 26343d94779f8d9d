#!/usr/bin/env bash
directives=(--name job-04-ddp-torchrun --workers 1 --gpu 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# The same as 04-ddp with torchrun, for an image that has PyTorch, as in the tutorial.
# bash 04-ddp-torchrun.sh submits it where runai is logged in; the pods run the copy of this file that lies in the volume.
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

: "${OPTIONS:=--epochs 10 --checkpoint-every 100}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
: "${CHECKPOINTS:=/mnt/scratch/checkpoints/04-ddp}" # EDIT: another folder for another training
mkdir -p "$CHECKPOINTS"
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
exec "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  torchrun --nnodes "$WORLD_SIZE" --node-rank "$RANK" --nproc-per-node "$PROCESSES" --max-restarts 0 \
  --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" --rdzv-id "$JOB_UUID" --log-dir "$LOGS" --tee 3 \
  --no-python "$BUILD/04-ddp/fashion_mnist" --checkpoint "$CHECKPOINTS" --json "$LOGS/result.jsonl" "${options[@]}"
