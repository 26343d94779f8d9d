// Target multinode::launch: rank, world size and node of this process, from its launcher. No dependencies.
#pragma once

#include <multinode/launch/launch.hpp>
