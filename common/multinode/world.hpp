// Target multinode::world: all processes of a run, with deadlines for their waits.
#pragma once

#include <multinode/launch.hpp>
#include <multinode/world/world.hpp>
