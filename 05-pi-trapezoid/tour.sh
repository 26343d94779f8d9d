# What ci/tour shows of this chapter.
# shellcheck shell=bash
show two_nodes 'pi = 3\.[0-9]+' 'known error, but for rounding' pi --n 1e9 --warmup 0 --trials 1
