#include "table.hpp"

#include "options.hpp"

#include <multinode/options.hpp>
namespace rdma {
int run_table(int argc, const char* const* argv) {
  SystemOptions system;
  WantedOptions wanted;
  return multinode::parse_command_line(argc, argv, system.description().add(wanted.description()), true) ? 0 : 0;
}
}  // namespace rdma
