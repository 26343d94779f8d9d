// memory.hpp: the bandwidth of the node's memory.
#pragma once

#include "finding.hpp"

namespace node_check {

// STREAM's triad, a[i] = b[i] + s * c[i], on all CPUs, and its copy: the best of the repeats that fit into `seconds`;
// 24 and 16 bytes an element (McCalpin, "Memory Bandwidth and Machine Balance", 1995). Every element is checked
// afterwards. `corrupt`: one bit of a is turned before.
Findings measure_memory_bandwidth(double seconds, bool corrupt);

// Elements an array: four times the last-level cache (STREAM's rule) and 64 MiB at least, but all three together no
// more than `most_bytes`.
std::size_t array_length(double cache_bytes, double most_bytes);

// The rate of matrix products through CBLAS.
Finding measure_matrix_rate(double seconds, bool corrupt);

}  // namespace node_check
