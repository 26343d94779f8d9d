# What ci/tour shows of this chapter.
# shellcheck shell=bash
lesson mpirun 'pi = 3\.[0-9]+' 'the recorded bits of all blocks' pi_exact
show two_nodes 'pi = 3\.[0-9]+' 'against the known error' pi
show gpus 'pi = 3\.[0-9]+' 'the recorded bits of all blocks' pi_gpu
show gpus 'pi = 3\.[0-9]+' 'against the known error' pi --backend nccl --n 1e7
