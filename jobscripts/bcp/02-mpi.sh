#!/usr/bin/env bash
directives=(--name 02-mpi --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# All-reduce by mpirun through bcprun: one process per replica drives all its GPUs. bcprun must be told in two places.
# Where ngc is logged in, bash 02-mpi.sh submits it: this file itself becomes the job's command line, edits and all.
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
: "${OPTIONS:=-b 64M -e 4G -f 2 -n 100}" # EDIT: all_reduce_perf --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
NGC_ARRAY_TYPE=MPIJob "${bcprun[@]}" -p 1 --launcher 'mpirun --allow-run-as-root' -c "$BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/02-mpi/all_reduce_perf -g $NGC_GPUS_PER_NODE --json $LOGS/result.jsonl $OPTIONS"
