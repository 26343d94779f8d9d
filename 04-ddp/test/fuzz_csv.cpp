// libFuzzer: whatever a file holds, parse_csv returns a whole table of finite numbers or throws std::runtime_error.
#include "data/csv.hpp"

#include <cmath>
#include <cstdlib>
#include <stdexcept>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    data::Table table = data::parse_csv({reinterpret_cast<const char*>(bytes), size}, "input");
    if (table.size() == 0 || table.features() == 0 || table.inputs.size() != table.size() * table.features())
      std::abort();
    for (const double value : table.inputs)
      if (!std::isfinite(value)) std::abort();
    if (table.size() >= 2) data::standardise(table, table.size());
  } catch (const std::runtime_error& e) {
    for (const char* c = e.what(); *c; ++c)
      if (*c < ' ' || *c > '~') std::abort();
  }
  return 0;
}
