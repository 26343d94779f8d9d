#include "simulate.hpp"
namespace rdma {
int run_simulate(int, const char* const*) { return 1; }
}  // namespace rdma
