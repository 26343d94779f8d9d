// commands.hpp: the commands of rdma_tune, as reference.md describes them. argv[0] is the command's name; each returns
// the exit status.
#pragma once

namespace rdma {

// Devices, ports and GIDs, each GID with "chosen" or why not.
int run_table(int argc, const char* const* argv);

// exec [OPTIONS] -- COMMAND: replaces itself with the command, with this node's settings.
int run_exec(int argc, const char* const* argv);

// verify [OPTIONS] -- COMMAND: the report goes to stderr, as that of time(1), since stdout is the command's.
int run_verify(int argc, const char* const* argv);

int run_check(int argc, const char* const* argv);

// compare FILE...: of lines of `rdma_tune --json`. Without a file, under a launcher, each rank reads its own node.
int run_compare(int argc, const char* const* argv);

}  // namespace rdma
