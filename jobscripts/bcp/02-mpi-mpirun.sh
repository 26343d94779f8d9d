#!/usr/bin/env bash
directives=(--name 02-mpi-mpirun --array-type MPI --replicas 2 --total-runtime 10m) # EDIT
# All-reduce by mpirun itself, with the array type MPI: BCP tells mpirun the replicas.
# Where ngc is logged in, bash 02-mpi-mpirun.sh submits it: this file itself becomes the job's command line, edits and all.
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

: "${OPTIONS:=-b 64M -e 4G -f 2 -n 100}" # EDIT: all_reduce_perf --help lists them
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
read -ra options <<<"$OPTIONS"
exec mpirun --allow-run-as-root -x IBV_DRIVERS=/usr/lib/libibverbs/libmlx5 -np "$NGC_ARRAY_SIZE" -npernode 1 \
  "$BUILD/07-rdma-tuning/rdma_tune" exec -- \
  "$BUILD/02-mpi/all_reduce_perf" -g "$NGC_GPUS_PER_NODE" --json "$LOGS/result.jsonl" "${options[@]}"
