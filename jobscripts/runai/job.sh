# shellcheck shell=bash disable=SC2034 # launcher and tune are for the scripts
# The beginning of all scripts in this folder. On a machine where runai is logged in, it submits the script and ends; in a
# pod, the script continues behind it. The pods run the copies of both files in the volume.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
: "${PROJECT:=/mnt/scratch/multi-node-cpp}"              # EDIT: your project in the volume; in its jobscripts/runai is this file, with your scripts
: "${BUILD:=$PROJECT/build/release}"                     # the folder of your programs
: "${IMAGE:=registry.example.com/multi-node-cpp:latest}" # EDIT: an image with what they need
: "${CLAIM:=my-scratch}"                                  # EDIT: the claim of the volume, which is mounted at /mnt/scratch
name=${NAME:-job-$(basename "$0" .sh)} # NAME=another, while a job of this name exists
if [[ -z ${RANK:-} ]]; then # not yet in a pod
  rdma=(--annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1) # EDIT: of your site; rdma=() without such a network
  [[ " ${directives[*]} " != *' -g 0 '* ]] || rdma=() # no GPUs: the pods need no RDMA network
  directives+=(-i "$IMAGE" "${rdma[@]}" --large-shm)
  for variable in PROJECT BUILD IMAGE PROCESSES OPTIONS LOGS CHECKPOINTS REQUIRE; do
    [[ -z ${!variable+set} ]] || directives+=(-e "$variable=${!variable}")
  done
  command=(--command -- bash "$PROJECT/jobscripts/runai/$(basename "$0")")
  echo "Its output: runai training pytorch logs $name, until the job is deleted; files stay in /mnt/scratch/logs"
  [[ -n ${OLD_RUNAI:-} ]] || exec runai training pytorch submit "$name" "${directives[@]}" \
    --existing-pvc "claimname=$CLAIM,path=/mnt/scratch" "${command[@]}"
  exec runai submit-dist pytorch --name "$name" "${directives[@]}" --pvc "$CLAIM:/mnt/scratch" "${command[@]}"
fi
: "${LOGS:=/mnt/scratch/logs/${JOB_UUID:-$name-$MASTER_ADDR}}" # one file per rank, and results; all pods must see it
mkdir -p "$LOGS"
launcher=("$BUILD/01-environment/mnrun") # EDIT: without this project's mnrun: (torchrun --no-python --nnodes "$WORLD_SIZE" --node-rank "$RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT")
tune=("$BUILD/07-rdma-tuning/rdma_tune" exec --) # EDIT: gives each node its own settings for RDMA, or for sockets; tune=() without this project's rdma_tune
export MULTINODE_SECRET_FILE=$LOGS/secret # keeps strangers out of the meeting of mnrun and the ranks; made if it is missing
echo "job $name, pod $RANK of $WORLD_SIZE, $(hostname), image $IMAGE, kernel $(uname -r)" # RANK counts pods here
echo "programs of $BUILD, logs in $LOGS"
