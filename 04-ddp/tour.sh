# What ci/tour shows of this chapter.
# shellcheck shell=bash
lesson mpirun 'RIGHT: .*' 'the same bits as one process' train_overlap
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
show two_nodes 'test accuracy [0-9.]+ %' 'unseen images, at least 86 %; ranks alike' fashion_mnist "${images[@]}"
show gpus 'RIGHT: .*' 'parameters of one process' train_gpu
show gpus 'test accuracy [0-9.]+ %' 'unseen images, at least 75 %; ranks alike' fashion_mnist --backend nccl --steps 100 --min-accuracy 75 "${images[@]}"
