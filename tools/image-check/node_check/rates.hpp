// rates.hpp: how fast a node is: the bandwidth of its memory, and matrix products on one core.
#pragma once

#include "findings.hpp"

#include <string>

namespace node_check {

// STREAM's triad, a[i] = b[i] + s * c[i], on all CPUs: the best of the repeats that fit into `seconds`; 24 bytes an
// element (McCalpin, "Memory Bandwidth and Machine Balance", 1995). Every element is checked
// afterwards. `corrupt`: one bit of a is turned before. Wrong, too, where a core is too slow.
Finding measure_memory_bandwidth(double seconds, bool corrupt);

// Why a core that moves `rate` bytes per second of its CPU time is too slow: any server's moves ten times as much as
// the limit, 1 GB/s. "": it is not.
std::string why_slow_memory(double rate);

// The rate of matrix products through CBLAS on one core, by its CPU time, so that other work on the node does not lower
// it. Wrong, too, where it is far below what the core does in registers.
Finding measure_matrix_rate(double seconds, bool corrupt);

// Why one core's rate of matrix products is too low, in operations per second of its CPU time: an optimised `library`,
// the file that has the products, reaches nearly all of the AVX2 multiply-adds that the same core did in the same
// moments, whatever its clock was and whoever shared it. Half is the limit: caches may cost the rest. "": not too low.
std::string why_slow(double rate, double multiply_adds, const std::string& library);

}  // namespace node_check
