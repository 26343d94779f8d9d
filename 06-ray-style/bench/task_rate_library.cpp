// The job library of task_rate.
#include "tasks/functions.hpp"

#include <sys/resource.h>

#include <cstdint>

void register_functions(tasks::Functions& functions) {
  functions.add("empty", [] {});
  functions.add("square", [](std::int64_t value) { return value * value; });
  functions.add("peak_memory", [] {  // of this runner, in bytes
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return std::int64_t{usage.ru_maxrss} * 1024;
  });
}
