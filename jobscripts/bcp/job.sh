# shellcheck shell=bash disable=SC2034,SC2154 # bcprun and directives are the script's
# The beginning of all scripts in this folder. On a machine where ngc is logged in, it submits the script and ends; in the
# job, the script continues behind it.
set -euo pipefail
: "${BUILD:=/mnt/workspace/multi-node-cpp/build/release}" # EDIT: where the project is built, in the workspace
: "${IMAGE:=my-org/my-team/multi-node-cpp:latest}"        # EDIT: an image with what the programs need
if [[ -z ${NGC_JOB_ID:-} ]]; then                         # not yet in the job; EDIT: ace, instance, workspace
  for name in OPTIONS LOGS CHECKPOINTS REQUIRE; do [[ -z ${!name+set} ]] || directives+=(--env-var "$name:${!name}"); done
  command=$(sed -e "/^source /{r $(dirname "$0")/job.sh" -e 'd}' "$0") # the script, with this file in place of its source line
  exec ngc batch run "${directives[@]}" --image "$IMAGE" --result /mnt/results --commandline "$command" \
    --ace "${ACE:-my-ace}" --instance "${INSTANCE:-dgxa100.80g.8.norm}" \
    --workspace "${WORKSPACE:-multi-node-cpp}:/mnt/workspace:RW" \
    --env-var "BUILD:$BUILD" --env-var "IMAGE:$IMAGE"
fi
: "${LOGS:=/mnt/workspace/logs/$NGC_JOB_ID}" # results; all replicas must see it
mkdir -p "$LOGS"
echo "job $NGC_JOB_ID on $NGC_ARRAY_SIZE replicas of $NGC_GPUS_PER_NODE GPUs, image $IMAGE, kernel $(uname -r)"
echo "programs of $BUILD, logs in $LOGS"
export MULTINODE_SECRET_FILE=$LOGS/secret # keeps strangers out of the meeting of the ranks; made if it is missing
bcprun=(bcprun -no_redirect -n "$NGC_ARRAY_SIZE" -e "BUILD=$BUILD" -e "LOGS=$LOGS" # other variables do not reach processes
  -e "MULTINODE_SECRET_FILE=$MULTINODE_SECRET_FILE")
