# What ci/tour shows of this chapter.
# shellcheck shell=bash disable=SC2154 # variables of ci/tour
lesson mpirun "$processes processes on [0-9]+ nodes?" 'every rank has the whole list' hello_mpi
show two_nodes '[0-9]+ processes on [0-9]+ nodes?' 'these are equal on all ranks' \
  explore --require-equal program,libc,kernel
