// rates.hpp: how fast a node is: the bandwidth of its memory, and matrix products on one core.
#pragma once

#include "findings.hpp"

#include <optional>
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
// it. Wrong, too, where it is far below the peak because of its library.
Finding measure_matrix_rate(double seconds, bool corrupt);

// Double-precision operations per second that one core can do at its nominal clock, by the text of /proc/cpuinfo.
// Nothing: it does not say so, or the CPU has no AVX2.
std::optional<double> peak_of_a_core(const std::string& cpuinfo);

// Why one core's rate, in operations per second of its CPU time, is too low: it is below an eighth of the peak, and
// `library`, the file that has the products, is no optimised BLAS. An optimised one reaches half of the peak. CPU time
// does not grow when other processes use the machine, but caches, the clock and hyper-threads may cost a factor: so an
// optimised one may reach a 32nd of the peak. "": it is not too low.
std::string why_slow(double rate, std::optional<double> peak, const std::string& library);

}  // namespace node_check
