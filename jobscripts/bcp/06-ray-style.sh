#!/usr/bin/env bash
directives=(--name 06-ray-style --array-type PYTORCH --replicas 2 --total-runtime 10m) # EDIT
# Starts a Ray cluster on the replicas, trains on it, and stops it.
# Where ngc is logged in, bash 06-ray-style.sh submits it: this file itself becomes the job's command line, edits and all.
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
: "${OPTIONS:=--epochs 3}" # EDIT: fashion_mnist --help lists them
: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all replicas must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}"
# shellcheck disable=SC2016 # each node expands it: $1 is its number, $2 the head's HOST:PORT
ray_node='(($1)) || exec ray start --head --port="${2#*:}" --num-cpus="$3" --block
until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done # the head first
exec ray start --address="$2" --num-cpus="$3" --block'
export PATH=$RAY/bin:$PATH RAY_ADDRESS=$NGC_MASTER_ADDR:6379
printf '%s\n' "$ray_node" >"$LOGS/ray_node.sh"
"${bcprun[@]}" -p 1 -e "PATH=$PATH" -c "bash $LOGS/ray_node.sh \$NGC_ARRAY_INDEX $RAY_ADDRESS $NGC_GPUS_PER_NODE" & # it stays
trap 'kill $! && wait || true' EXIT
until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do kill -0 $! || exit 1; sleep 1; done
read -ra options <<<"$OPTIONS" # EDIT: with GPUs add --gpus-per-worker=1
python3 "$TRAIN" --num-workers=$((NGC_ARRAY_SIZE * NGC_GPUS_PER_NODE)) "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl" "${options[@]}"
