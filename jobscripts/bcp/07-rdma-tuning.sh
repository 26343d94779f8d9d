#!/usr/bin/env bash
directives=(--name 07-rdma-tuning --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Compares the replicas' RDMA on NVIDIA Base Command Platform, looks for what is wrong, and measures.
# bash 07-rdma-tuning.sh submits it where ngc is logged in: this file itself becomes the job's command line, edits and all.
set -euo pipefail
: "${BUILD:=/mnt/workspace/multi-node-cpp/build/release}" # EDIT: where the project is built, in the workspace
: "${IMAGE:=my-org/my-team/multi-node-cpp:latest}"        # EDIT: an image with what the programs need
if [[ -z ${NGC_JOB_ID:-} ]]; then                         # not yet in the job; EDIT: ace, instance, workspace
  exec ngc batch run "${directives[@]}" --image "$IMAGE" --result /mnt/results --commandline "$(<"$0")" \
    --ace "${ACE:-my-ace}" --instance "${INSTANCE:-dgxa100.80g.8.norm}" \
    --workspace "${WORKSPACE:-multi-node-cpp}:/mnt/workspace:RW" \
    --env-var "BUILD:$BUILD" --env-var "IMAGE:$IMAGE" ${OPTIONS+--env-var "OPTIONS:$OPTIONS"}
fi
: "${LOGS:=/mnt/workspace/logs/$NGC_JOB_ID}" # a file for each rank, and results: all replicas have to see it
mkdir -p "$LOGS"
echo "job $NGC_JOB_ID on $NGC_ARRAY_SIZE replicas of $NGC_GPUS_PER_NODE GPUs, image $IMAGE, kernel $(uname -r)"
echo "programs of $BUILD, logs in $LOGS"
cat >"$LOGS/process.sh" <<'END' # what every process begins with: bcprun passes on no variable but those of -e
set -euo pipefail
rank=${OMPI_COMM_WORLD_RANK:-$RANK}
((rank == 0)) || exec >>"$LOGS/rank-$rank.log" 2>&1 # rank 0 writes to the job's output
exec "$@"
END
bcprun=(bcprun -no_redirect -n "$NGC_ARRAY_SIZE" -e "BUILD=$BUILD" -e "LOGS=$LOGS")

: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
tune=$BUILD/07-rdma-tuning/rdma_tune
"${bcprun[@]}" -p 1 -c "bash $LOGS/process.sh $tune --json $LOGS/replica-\$NGC_ARRAY_INDEX.json"
"${bcprun[@]}" -p 1 -c "bash $LOGS/process.sh $tune check"
"$tune" compare "$LOGS"/replica-*.json
# rdma_tune exec gives each node its own settings for RDMA, or for sockets where there is none.
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" \
  -c "bash $LOGS/process.sh $BUILD/07-rdma-tuning/rdma_tune exec -- \
  $BUILD/02-mpi/all_reduce_perf --json $LOGS/result.jsonl $OPTIONS"
