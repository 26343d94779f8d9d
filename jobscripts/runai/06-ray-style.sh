#!/usr/bin/env bash
directives=(--workers 1 -g 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# The master pod starts Ray's head, the others join it; trains on them, and ends all pods.
# Where runai is logged in, bash 06-ray-style.sh submits it; the pods run the copy of this file that lies in the volume.
set -euo pipefail
: "${PROJECT:=/mnt/scratch/multi-node-cpp}"              # EDIT: where the pods see this project, with this file
: "${BUILD:=$PROJECT/build/release}"                     # EDIT: where it is built
: "${IMAGE:=registry.example.com/multi-node-cpp:latest}" # EDIT: an image with what the programs need
name=job-$(basename "$0" .sh)
if [[ -z ${RANK:-} ]]; then # not yet in a pod; EDIT: claim, network
  directives+=(-i "$IMAGE" --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce --extended-resource rdma/rdma=1 --large-shm
    -e "PROJECT=$PROJECT" -e "BUILD=$BUILD" -e "IMAGE=$IMAGE" ${PROCESSES+-e "PROCESSES=$PROCESSES"} ${OPTIONS+-e "OPTIONS=$OPTIONS"})
  command=(--command -- bash "$PROJECT/jobscripts/runai/$(basename "$0")")
  echo "Its output: runai training pytorch logs $name, until the job is deleted; files stay in /mnt/scratch/logs"
  [[ -n ${OLD_RUNAI:-} ]] || exec runai training pytorch submit "$name" "${directives[@]}" \
    --existing-pvc "claimname=${CLAIM:-my-scratch},path=/mnt/scratch" "${command[@]}"
  exec runai submit-dist pytorch --name "$name" "${directives[@]}" --pvc "${CLAIM:-my-scratch}:/mnt/scratch" "${command[@]}"
fi
: "${LOGS:=/mnt/scratch/logs/${JOB_UUID:-$name-$MASTER_ADDR}}" # one file per rank, and results; all pods must see it
mkdir -p "$LOGS"
echo "job $name, pod $RANK of $WORLD_SIZE, $(hostname), image $IMAGE, kernel $(uname -r)" # RANK counts pods here
echo "programs of $BUILD, logs in $LOGS"

: "${PROCESSES:=2}" # EDIT: per pod: one for each GPU, or core
: "${OPTIONS:=--epochs 3}" # EDIT: fashion_mnist --help lists them
read -ra options <<<"$OPTIONS"
: "${RAY:=$HOME/.cache/multinode/ray}" # EDIT: Ray's environment (bash ci/setup ray); all pods must see it
: "${TRAIN:=$BUILD/../../06-ray-style/train_on_ray.py}"
# shellcheck disable=SC2016 # each node expands it: $1 is its number, $2 the head's HOST:PORT
ray_node='(($1)) || exec ray start --head --port="${2#*:}" --num-cpus="$3" --block
until (: <"/dev/tcp/${2/:/\/}") 2>/dev/null; do sleep 0.5; done # the head first
exec ray start --address="$2" --num-cpus="$3" --block'
export PATH=$RAY/bin:$PATH RAY_ADDRESS=$MASTER_ADDR:$MASTER_PORT
((RANK == 0)) || exec bash -c "$ray_node" ray_node "$RANK" "$RAY_ADDRESS" "$PROCESSES"
bash -c "$ray_node" ray_node 0 "$RAY_ADDRESS" "$PROCESSES" &
trap 'kill $! && wait || true' EXIT
until ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do kill -0 $! || exit 1; sleep 1; done
python3 "$TRAIN" --num-workers=$((WORLD_SIZE * PROCESSES)) "$BUILD/04-ddp/fashion_mnist" --json "$LOGS/result.jsonl" "${options[@]}"
