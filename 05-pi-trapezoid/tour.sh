# What ci/tour shows of this chapter.
# shellcheck shell=bash
lesson mpirun 'pi = 3\.[0-9]+' 'the same bits with 1 to 4 ranks; the known error' pi_exact
show two_nodes 'pi = 3\.[0-9]+' 'against the known error' pi
show gpus 'pi = 3\.[0-9]+' 'the known error' pi_gpu
show gpus 'pi = 3\.[0-9]+' 'against the known error' pi --backend nccl --n 1e7
