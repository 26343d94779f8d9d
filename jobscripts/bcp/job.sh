# shellcheck shell=bash disable=SC2034,SC2154 # bcprun, tune and directives are the script's
# The beginning of all scripts in this folder. On a machine where ngc is logged in, it submits the script and ends; in the
# job, the script continues behind it.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
: "${BUILD:=/mnt/workspace/multi-node-cpp/build/release}" # EDIT: the folder of your programs, in the workspace
: "${IMAGE:=my-org/my-team/multi-node-cpp:latest}"        # EDIT: an image with what they need
: "${ACE:=my-ace}" "${INSTANCE:=dgxa100.80g.8.norm}" "${WORKSPACE:=multi-node-cpp}" # EDIT: yours; the workspace is what all replicas share
if [[ -z ${NGC_JOB_ID:-} ]]; then                         # not yet in the job
  for name in OPTIONS LOGS CHECKPOINTS REQUIRE; do [[ -z ${!name+set} ]] || directives+=(--env-var "$name:${!name}"); done
  command=$(sed -e "/^source /{r $(dirname "$0")/job.sh" -e 'd}' "$0") # the script, with this file in place of its source line
  exec ngc batch run "${directives[@]}" --image "$IMAGE" --result /mnt/results --commandline "$command" \
    --ace "$ACE" --instance "$INSTANCE" --workspace "$WORKSPACE:/mnt/workspace:RW" \
    --env-var "BUILD:$BUILD" --env-var "IMAGE:$IMAGE"
fi
: "${LOGS:=/mnt/workspace/logs/$NGC_JOB_ID}" # results; all replicas must see it
mkdir -p "$LOGS"
echo "job $NGC_JOB_ID on $NGC_ARRAY_SIZE replicas of $NGC_GPUS_PER_NODE GPUs, image $IMAGE, kernel $(uname -r)"
tune=("$BUILD/07-rdma-tuning/rdma_tune" exec --) # EDIT: gives each node its own settings for RDMA, or for sockets; tune=() without this project's rdma_tune
echo "programs of $BUILD, logs in $LOGS"
export MULTINODE_SECRET_FILE=$LOGS/secret # keeps strangers out of the meeting of the ranks; made if it is missing
bcprun=(bcprun -no_redirect -n "$NGC_ARRAY_SIZE" -e "BUILD=$BUILD" -e "LOGS=$LOGS" # other variables do not reach processes
  -e "MULTINODE_SECRET_FILE=$MULTINODE_SECRET_FILE")
