# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
example_port() { bash 07-rdma-tuning/example_port.sh "$logs/example_port" && alone "$1" "$logs/example_port"; }
lesson example_port 'index [0-9]+ is RoCE v2' 'by the rule of two greps' gid_table
show alone 'GID [0-9]+|no RDMA device' 'each GID with its reason' rdma_tune
