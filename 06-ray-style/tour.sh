# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
# A head with its node, a second node or one on each other host, a command, and the end of all of them.
on_cluster() {
  local program=$1 cluster state status=0
  shift
  cluster=$(dirname "$program")/cluster
  state=$(mktemp -d "$logs/cluster.XXXXXX")
  at_end=("$cluster" stop --state "$state")
  { if [[ $spread = yes ]]; then
    HOSTS=${hosts[*]} one_launcher "$(dirname "$program")/start_cluster.sh" --state "$state" --port 0 --num-cpus 2
  else
    one_launcher "$cluster" start --head --port 0 --num-cpus 2 --state "$state" &&
      one_launcher "$cluster" start --address "$(<"$state/address")" --num-cpus 2 --state "$state"
  fi; } && one_launcher "$program" --state "$state" "$@" || status=$?
  "${at_end[@]}" || status=$?
  at_end=()
  cat "$state"/*.log && rm -r "$state"
  return $status
}
show on_cluster 'RIGHT.*wanted' 'all workers alike; accuracy over a limit' fashion_mnist_on_cluster --epochs 3 \
  --batch-size 128 --learning-rate 0.05 "${images[@]}"
show on_cluster 'pi = [0-9.]*' 'against the known error' pi_tasks --num-workers 4
