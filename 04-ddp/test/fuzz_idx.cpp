// libFuzzer: whatever a file holds, read_idx returns or throws std::runtime_error.
#include "data/idx.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const int file = memfd_create("input", 0);
  if (file < 0 || write(file, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const data::Idx idx = data::read_idx("/proc/self/fd/" + std::to_string(file));
    std::size_t count = 1;
    for (const std::size_t dimension : idx.dimensions) count *= dimension;
    if (count != idx.values.size()) std::abort();
  } catch (const std::runtime_error&) {
  }
  close(file);
  return 0;
}
