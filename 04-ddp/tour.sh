# What ci/tour shows of this chapter.
# shellcheck shell=bash
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
show two_nodes 'test accuracy [0-9.]+ %' 'unseen images, at least 86 %; ranks alike' fashion_mnist "${images[@]}"
