# What ci/tour shows of this chapter.
# shellcheck shell=bash
show two_nodes '[0-9]+ processes on [0-9]+ nodes?' 'these are equal on all ranks' \
  explore --require-equal program,libc,kernel
