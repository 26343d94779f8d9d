# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
# A head with its node, a second node or one on each other host, a job, and the end of all of them.
on_cluster() {
  [[ -n $gloo ]] || { echo "cluster: the training needs Gloo here" && return 77; }
  local cluster=$1 state host status=0 others=("${hosts[@]:1}")
  shift
  state=$(mktemp -d "$logs/cluster.XXXXXX")
  at_end=("$cluster" stop --state "$state")
  local -x PATH=$build/04-ddp:$PATH # 'run' looks the program up
  local start=("$cluster" start --state "$state" --num-cpus 2)
  local head=("${start[@]}" --head --port 0)
  if [[ $spread = yes ]]; then head+=(--host "${hosts[0]}"); else others=(here); fi
  "${head[@]}" &
  "$cluster" status --state "$state" --wait-for-nodes 1 >/dev/null
  for host in "${others[@]}"; do
    if [[ $host = here ]]; then "${start[@]}" & else ssh -n "$host" "cd ${PWD@Q} && ${start[*]@Q}" & fi
  done
  "$cluster" status --state "$state" --wait-for-nodes $((${#others[@]} + 1)) &&
    one_launcher "$cluster" run --state "$state" "$@" || status=$?
  "${at_end[@]}" || status=$?
  at_end=()
  wait
  rm -r "$state"
  return $status
}
show on_cluster 'test accuracy [0-9.]+ %' 'all workers alike, at least 80 %' cluster --num-workers 4 -- fashion_mnist \
  --backend gloo --epochs 1 --min-accuracy 80 "${images[@]}"
