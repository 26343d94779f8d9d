# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
lesson mpirun "0 elements wrong on $processes processes" 'every element, exactly' all_reduce
show mpirun 'Out of bounds values : 0 OK' 'every element, exactly' all_reduce_perf -b 8 -e 8M -f 32
show two_nodes 'Out of bounds values : 0 OK' 'every element, exactly' all_reduce_perf -b 8 -e 8M -f 32
show gpus 'Out of bounds values : 0 OK' 'every element, exactly' all_reduce_perf --backend nccl -b 8 -e 64K -f 16
