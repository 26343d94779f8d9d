// commands.hpp: the commands of rdma_tune. argv[0] is the command's name; each returns the exit status.
#pragma once

namespace rdma {

// Devices, ports and GIDs, each GID with "chosen" or why not.
int run_table(int argc, const char* const* argv);

// exec [OPTIONS] -- COMMAND: finds this node's settings, adds them to the environment and replaces itself with the
// command. Variables that are set already keep their values. Returns 127 if there is no such command, 126 if it cannot
// be executed.
int run_exec(int argc, const char* const* argv);

// verify [OPTIONS] -- COMMAND: the command's exit status if it is not 0; else 1 if the verdict is not the required one
// (3: cannot tell). The report goes to stderr, as that of time(1), since stdout is the command's.
int run_verify(int argc, const char* const* argv);

// check: 1 if something is bad; 3 if there is no RDMA device, or one that cannot be read; else 0.
int run_check(int argc, const char* const* argv);

// compare FILE...: files with one or more lines of `rdma_tune --json`. Without a file, under a launcher, each rank
// reads its own node. Judged is what matters between nodes: the number of ports, their link layer, speed, MTU and
// network. Names of devices and GID indices may differ. Returns 1 if something differs, 3 if no node has a port to use.
int run_compare(int argc, const char* const* argv);

}  // namespace rdma
