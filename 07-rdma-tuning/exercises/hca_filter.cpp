// Exercise: which devices does NCCL_IB_HCA select? NCCL compares the beginnings of names: mlx5_1 also selects mlx5_10.
// A leading = asks for whole names, a leading ^ selects every device that the list does not, and ^= is both.
//
//   g++ -std=c++20 -O2 hca_filter.cpp -o hca_filter
//   ./hca_filter
//
// Exit status: 0 if every answer is right, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <sstream>
#include <string>

// Whether NCCL_IB_HCA=value selects the device.
bool selects(std::string value, const std::string& device) {
  // TODO (exercise): a leading ^ and a leading =
  std::istringstream list(value);
  for (std::string name; std::getline(list, name, ',');)
    if (device.starts_with(name)) return true;
  return false;
}

int main() {
  const struct {
    const char *value, *device;
    bool selected;
  } cases[] = {{"mlx5", "mlx5_bond_0", true},          {"mlx5_1", "mlx5_10", true},
               {"=mlx5_1", "mlx5_10", false},          {"=mlx5_1,mlx5_10", "mlx5_10", true},
               {"^mlx5_1", "mlx5_10", false},          {"^mlx5_1", "mlx5_2", true},
               {"^=mlx5_1", "mlx5_10", true},          {"^=mlx5_1,mlx5_2", "mlx5_2", false},
               {"mlx5_0,mlx5_3", "mlx5_bond_0", false}};
  bool right = true;
  for (const auto& [value, device, selected] : cases) {
    const bool answer = selects(value, device);
    std::printf("%s: NCCL_IB_HCA=%s and %s: %s\n", answer == selected ? "RIGHT" : "WRONG", value, device,
                answer ? "selected" : "not selected");
    right = right && answer == selected;
  }
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("hca_filter: standard output"), 1;
  return right ? 0 : 1;
}
