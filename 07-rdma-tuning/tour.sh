# What ci/tour shows of this chapter.
# shellcheck shell=bash
show alone 'GID [0-9]+|no RDMA device' 'by the rules, each GID with its reason' rdma_tune
