// nodes.hpp: the nodes against each other.
#pragma once

#include "results.hpp"
#include "xml.hpp"

namespace image_check {

// Tables of nodes by metrics and checks, and of pairs of nodes: each value coloured by its ratio to the median over the
// nodes. Nothing, where there is one node only, or nothing was measured for single nodes. True: something was added.
bool add_nodes(pugi::xml_node parent, const Results& results);

}  // namespace image_check
