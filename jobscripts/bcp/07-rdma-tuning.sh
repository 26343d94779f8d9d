#!/usr/bin/env bash
directives=(--name 07-rdma-tuning --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Compares the replicas' RDMA, looks for faults, measures, and shows whether the traffic used RDMA.
# Where ngc is logged in, bash 07-rdma-tuning.sh submits it: this file itself becomes the job's command line, edits and all.
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
: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
tune=$BUILD/07-rdma-tuning/rdma_tune
"${bcprun[@]}" -p 1 -c "$tune --json $LOGS/replica-\$NGC_ARRAY_INDEX.json"
"${bcprun[@]}" -p 1 -c "$tune check"
"$tune" compare "$LOGS"/replica-*.json
: "${REQUIRE:=}" # EDIT: rdma: the job fails unless this replica's traffic used RDMA
# verify reads the counters of this replica; exec gives each replica its own settings.
"$tune" verify ${REQUIRE:+--require "$REQUIRE"} -- "${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "$tune exec -- \
  $BUILD/02-mpi/all_reduce_perf --json $LOGS/result.jsonl $OPTIONS"
