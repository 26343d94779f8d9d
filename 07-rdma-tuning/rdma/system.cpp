#include "system.hpp"
namespace rdma {
System read_system(const std::filesystem::path& root) { return {root, {}, {}, {}, {}}; }
int distance(const System&, const std::string&, const std::string&) { return 3; }
}  // namespace rdma
