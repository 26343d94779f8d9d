#!/usr/bin/env bash
directives=(--name 04-ddp-trainer --array-type PYTORCH --replicas 2 --total-runtime 1h) # EDIT
# Trains with a trainer that has the loop, as PyTorch Lightning does.
# Where ngc is logged in, bash 04-ddp-trainer.sh submits it: this file itself becomes the job's command line, edits and all.
set -euo pipefail
: "${BUILD:=/mnt/workspace/multi-node-cpp/build/release}" # EDIT: where the project is built, in the workspace
: "${IMAGE:=my-org/my-team/multi-node-cpp:latest}"        # EDIT: an image with what the programs need
if [[ -z ${NGC_JOB_ID:-} ]]; then                         # not yet in the job; EDIT: ace, instance, workspace
  exec ngc batch run "${directives[@]}" --image "$IMAGE" --result /mnt/results --commandline "$(<"$0")" \
    --ace "${ACE:-my-ace}" --instance "${INSTANCE:-dgxa100.80g.8.norm}" \
    --workspace "${WORKSPACE:-multi-node-cpp}:/mnt/workspace:RW" \
    --env-var "BUILD:$BUILD" --env-var "IMAGE:$IMAGE" ${OPTIONS+--env-var "OPTIONS:$OPTIONS"}
fi
: "${LOGS:=/mnt/workspace/logs/$NGC_JOB_ID}" # results; all replicas must see it
mkdir -p "$LOGS"
echo "job $NGC_JOB_ID on $NGC_ARRAY_SIZE replicas of $NGC_GPUS_PER_NODE GPUs, image $IMAGE, kernel $(uname -r)"
echo "programs of $BUILD, logs in $LOGS"

bcprun=(bcprun -no_redirect -n "$NGC_ARRAY_SIZE" -e "BUILD=$BUILD" -e "LOGS=$LOGS") # other variables do not reach processes
: "${OPTIONS:=--epochs 5 --optimizer adam --patience 3}" # EDIT: fashion_mnist --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/04-ddp/fashion_mnist --json $LOGS/result.jsonl $OPTIONS"
