// self_test.hpp: faults are planted, and every one has to be caught, by the detector that is meant to.
#pragma once

#include "cluster.hpp"

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

namespace image_check {

struct SelfTestOptions {
  ClusterOptions cluster;
  std::filesystem::path folder = "image-check-self-test";
  std::vector<std::string> only;  // faults; none: all
};

// Plants each fault in a run of one check, in which the detector that is meant to must find it, and nothing else may
// find anything. Returns exit_right, or exit_wrong for a fault that was missed, or caught by something else. A fault
// that cannot be planted here is reported and counted, and the exit status is then 3.
int self_test(const SelfTestOptions& options, std::ostream& out);

// The names of all faults.
std::vector<std::string> faults();

// Runs in place of a program, in each of its processes: plants `fault` in rank 1, then becomes the program.
// Throws multinode::UsageError for an unknown fault.
[[noreturn]] void plant(const std::string& fault, const std::vector<std::string>& program);

}  // namespace image_check
