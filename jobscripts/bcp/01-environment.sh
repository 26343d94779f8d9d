#!/usr/bin/env bash
directives=(--name 01-environment --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Shows what every process sees, and fails where the replicas differ, on NVIDIA Base Command Platform.
# bash 01-environment.sh submits it where ngc is logged in: this file itself becomes the job's command line, edits and all.
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

: "${OPTIONS:=--require-equal program,libc,kernel}" # EDIT: explore --help lists them
"${bcprun[@]}" -p "$NGC_GPUS_PER_NODE" -c "bash $LOGS/process.sh $BUILD/01-environment/explore --json $LOGS/result.jsonl $OPTIONS"
