// Target multinode::world: all processes of a run, with deadlines for their waits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch.hpp>
#include <multinode/world/world.hpp>
