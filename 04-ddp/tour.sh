# What ci/tour shows of this chapter.
# shellcheck shell=bash
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
show two_nodes 'test accuracy [0-9.]+ %, at least [0-9.]+ %' '10,000 unseen images; same parameters on every rank' \
  fashion_mnist --epochs 3 "${images[@]}"
