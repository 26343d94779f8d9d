// Target multinode::communicator: one interface to the collectives of MPI, NCCL and Gloo.
#pragma once

#include <multinode/communicator/communicator.hpp>
#include <multinode/world.hpp>
