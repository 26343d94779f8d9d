#!/usr/bin/env bash
directives=(--name 06-ray-style --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Starts a head and nodes on NVIDIA Base Command Platform, trains on them, and stops them.
# bash 06-ray-style.sh submits it where ngc is logged in: this file itself becomes the job's command line, edits and all.
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

: "${OPTIONS:=--epochs 3}" # EDIT: fashion_mnist --help lists them
cat >"$LOGS/replica.sh" <<'END' # start_cluster.sh returns on replica 0, and on the others when the cluster has ended
set -euo pipefail
state=$LOGS/state cluster=$BUILD/06-ray-style/cluster
"$BUILD/06-ray-style/start_cluster.sh" --state "$state" --num-cpus "$NGC_GPUS_PER_NODE"
((NGC_ARRAY_INDEX == 0)) || exit 0
trap '"$cluster" stop --state "$state"' EXIT
read -ra options <<<"$OPTIONS"
"$cluster" submit --state "$state" --num-workers $((NGC_ARRAY_SIZE * NGC_GPUS_PER_NODE)) \
  --json "$LOGS/result.jsonl" -- fashion_mnist --backend gloo "${options[@]}"
END
"${bcprun[@]}" -p 1 -e "OPTIONS=$OPTIONS" -c "bash $LOGS/process.sh bash $LOGS/replica.sh"
