#!/usr/bin/env bash
directives=(--workers 1 -g 2 --backoff-limit 0) # EDIT: pods beside the master, GPUs of each pod
# Compares the pods' RDMA, looks for faults, measures, and shows whether the traffic used RDMA.
# Where runai is logged in, bash 07-rdma-tuning.sh submits it; the pods run the copy of this file that lies in the volume.
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
: "${OPTIONS:=-b 8 -e 64M -f 8}" # EDIT: all_reduce_perf --help lists them
read -ra options <<<"$OPTIONS"
tune=$BUILD/07-rdma-tuning/rdma_tune
"$tune" check
"$tune" --json "$LOGS/new-$RANK"
mv "$LOGS/new-$RANK" "$LOGS/pod-$RANK.json"
until found=("$LOGS"/pod-*.json) && ((${#found[@]} == WORLD_SIZE)); do
  ((SECONDS < 600)) || { echo "not all pods came within 600 s: ${found[*]}" >&2 && exit 1; }
  sleep 0.2
done
((RANK > 0)) || "$tune" compare "${found[@]}"
: "${REQUIRE:=}" # EDIT: rdma: the job fails unless each pod's traffic used RDMA
# verify reads the pod's counters; exec gives each pod its own settings; mnrun reads WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT.
exec "$tune" verify ${REQUIRE:+--require "$REQUIRE"} -- "$tune" exec -- \
  "$BUILD/01-environment/mnrun" --nproc-per-node "$PROCESSES" --log-dir "$LOGS" --tee 3 \
  "$BUILD/02-mpi/all_reduce_perf" --json "$LOGS/result.jsonl" "${options[@]}"
