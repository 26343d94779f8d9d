// print.hpp: what all processes see, for people: a row a process, a block a node.
#pragma once

#include "explore/comparison.hpp"

#include <ostream>

namespace explore {

void print(const Processes& processes, std::ostream& out);

}  // namespace explore
