// cpu.hpp: ranks that compute on the CPU's cores.
#pragma once

#include <multinode/world.hpp>

// Shares out the node's cores to its ranks: more threads of tensor operations than cores fight for them. A rank that
// has fewer threads already, by OMP_NUM_THREADS or because the launcher binds it to a core, keeps them.
void share_cores(const multinode::World& world);
