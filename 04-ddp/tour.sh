# What ci/tour shows of this chapter.
# shellcheck shell=bash
lesson mpirun '[0-9]+ parameters differ' 'the bits of one process' train_overlap
images=()
[[ -z ${MULTINODE_FASHION_MNIST:-} ]] || images=(--data "$MULTINODE_FASHION_MNIST")
show two_nodes 'test accuracy [0-9.]+ %' 'at least 84 % of unseen images' fashion_mnist --epochs 2 --min-accuracy 84 "${images[@]}"
show gpus 'differ from one process by [0-9.e+-]+' 'the parameters of one process' train_gpu
show gpus 'test accuracy [0-9.]+ %' 'at least 75 % of unseen images' fashion_mnist --backend nccl --steps 100 --min-accuracy 75 "${images[@]}"
