// Target multinode::communicator: one interface to the collectives of MPI, NCCL and Gloo.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/communicator.hpp>
#include <multinode/world.hpp>
