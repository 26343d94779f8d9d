// print.hpp: the report for people: one row per process, one block per node.
#pragma once

#include "explore/comparison.hpp"

#include <ostream>

namespace explore {

void print(const Processes& processes, std::ostream& out);

}  // namespace explore
