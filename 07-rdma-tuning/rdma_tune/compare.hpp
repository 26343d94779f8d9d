// compare.hpp: rdma_tune compare.
#pragma once

namespace rdma {

// rdma_tune compare FILE...: files with one or more lines of `rdma_tune --json`. Without a file, under a launcher, each
// rank reads its own node. Judged is what matters between nodes: the number of ports, their link layer, speed, MTU and
// network. Names of devices and GID indices may differ. Returns 1 if something differs.
int run_compare(int argc, const char* const* argv);

}  // namespace rdma
