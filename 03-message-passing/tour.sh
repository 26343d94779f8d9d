# What ci/tour shows of this chapter.
# shellcheck shell=bash
lesson mpirun '[0-9]+ of [0-9]+ elements wrong' 'every element, by its receiver' send_mpi
lesson mpirun '[0-9]+ of [0-9]+ cells differ' 'the bits of one process' heat
lesson mpirun '[0-9]+ of [0-9]+ cells differ' 'the bits of one process' heat_2d
lesson mpirun '[0-9]+ of [0-9]+ tasks wrong' 'the primes of a sieve' manager_workers
lesson mpirun '[0-9]+ of [0-9]+ elements wrong' 'every element, by its receiver' one_sided
show gpus '[0-9]+ elements wrong' 'every element, by its receiver' cuda_aware
show mpirun '[0-9]+ of [0-9]+ elements wrong' 'every element, by its receiver' message_passing_mpi
show two_nodes '[0-9]+ of [0-9]+ elements wrong' 'every element, by its receiver' message_passing_gloo
show two_nodes '[0-9]+ of [0-9]+ elements wrong' 'every element, by its receiver' message_passing_nccl
