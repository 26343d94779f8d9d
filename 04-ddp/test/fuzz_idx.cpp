// libFuzzer: whatever a file holds, parse_idx returns or throws std::runtime_error.
#include "data/idx.hpp"

#include <cstdlib>
#include <stdexcept>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    const data::Idx idx = data::parse_idx({bytes, size}, "input");
    std::size_t count = 1;
    for (const std::size_t dimension : idx.dimensions) count *= dimension;
    if (count != idx.values.size()) std::abort();
  } catch (const std::runtime_error&) {
  }
  return 0;
}
