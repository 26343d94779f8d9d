# What ci/tour shows of this chapter.
# shellcheck shell=bash
show alone 'GID [0-9]+|no RDMA device' 'by the rules, each GID with its reason' rdma_tune
show hosts '[0-9]+ nodes agree.*' 'each value of every node' rdma_tune compare
