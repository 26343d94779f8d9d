# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
lesson mpirun "$processes processes on [0-9]+ nodes?" 'rank 0 has heard from every rank' hello_mpi
show two_nodes '[0-9]+ processes on [0-9]+ nodes?' 'these are equal on all ranks' \
  explore --require-equal program,libc,kernel
