// Target multinode::launch: rank, world size and node of this process, from its launcher. No dependencies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/launch.hpp>
