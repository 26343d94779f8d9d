# What ci/tour shows of this chapter.
# shellcheck shell=bash
show two_nodes 'pi = 3\.[0-9]+' 'against the known error' pi
