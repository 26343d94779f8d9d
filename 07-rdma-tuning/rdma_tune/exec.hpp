// exec.hpp: rdma_tune exec.
#pragma once

namespace rdma {

// rdma_tune exec [OPTIONS] -- COMMAND: finds this node's settings, adds them to the environment and replaces itself
// with the command. Variables that are set already keep their values. Returns 127 if there is no such command, 126 if
// it cannot be executed.
int run_exec(int argc, const char* const* argv);

}  // namespace rdma
