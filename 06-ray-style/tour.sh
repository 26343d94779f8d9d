# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
# A head with its node, a second node, a job, and the end of all of them.
on_cluster() {
  [[ -n $gloo ]] || { echo "cluster: the training needs Gloo here" && return 77; }
  local cluster=$1 state status=0
  shift
  state=$(mktemp -d "$logs/cluster.XXXXXX")
  at_end=("$cluster" stop --state "$state")
  local -x PATH=$build/04-ddp:$PATH # 'run' looks the program up
  "$cluster" start --state "$state" --num-cpus 2 --head --port 0 &
  "$cluster" status --state "$state" --wait-for-nodes 1 >/dev/null
  "$cluster" start --state "$state" --num-cpus 2 &
  "$cluster" status --state "$state" --wait-for-nodes 2 &&
    one_launcher "$cluster" run --state "$state" "$@" || status=$?
  "${at_end[@]}" || status=$?
  at_end=()
  wait
  rm -r "$state"
  return $status
}
lesson alone 'y = [0-9.]+ x' 'the bits of an undisturbed training' resume
show on_cluster 'test accuracy [0-9.]+ %' 'all workers alike, at least 80 %' cluster --num-workers 4 -- fashion_mnist \
  --backend gloo --epochs 1 --min-accuracy 80 "${images[@]}"
