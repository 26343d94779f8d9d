// pi_on_ray: the sum of chapter 05's pi_exact.cpp as Ray tasks, one per block. The answer has the bits of chapter 05 on
// any number of nodes, because the blocks are added by the same tree. CMakeLists.txt compiles this file twice: as this
// program, and as the library in which Ray's C++ workers find the function of the tasks.
// Exit status: 0 if the bits are those of the same sum without Ray and the error is within its bound, 1 if not.
#include <ray/api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <span>
#include <vector>

double f(double x) { return 4 / (1 + x * x); }

// Adds neighbours, then the sums of neighbours, and so on: the brackets depend on the number of values alone.
double tree_sum(std::span<const double> values) {
  if (values.size() <= 1) return values.empty() ? 0 : values[0];
  const std::size_t half = std::bit_ceil(values.size()) / 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

constexpr std::int64_t block_length = 65536;

double block_sum(std::int64_t n, std::int64_t block) {
  const double h = 1.0 / double(n);
  const std::int64_t first = 1 + block * block_length, points = std::min(block_length, n - first);
  std::vector<double> chains(1024);
  for (std::int64_t j = 0; j < points; ++j) chains[std::size_t(j / 512 * 8 + j % 8)] += f(double(first + j) * h);
  return tree_sum(chains);
}
RAY_REMOTE(block_sum);

int main(int argc, char** argv) {
  ray::RayConfig config;
  ray::Init(config, argc, argv);  // joins the cluster of RAY_ADDRESS; without it, starts one for this run

  const std::int64_t n = 10'000'000, blocks = (n - 1 + block_length - 1) / block_length;
  std::vector<ray::ObjectRef<double>> tasks;
  for (std::int64_t block = 0; block < blocks; ++block) tasks.push_back(ray::Task(block_sum).Remote(n, block));
  std::vector<double> sums, sums_here;
  for (std::int64_t block = 0; block < blocks; ++block) {
    sums.push_back(*ray::Get(tasks[std::size_t(block)]));  // throws what the task threw
    sums_here.push_back(block_sum(n, block));
  }

  const double answer = ((f(0) + f(1)) / 2 + tree_sum(sums)) / double(n), h = 1 / double(n);
  // A term goes through at most 95 roundings: 5 to make it, 63 in its chain, 10 + 14 in the trees, 3 at the end.
  const double error = std::numbers::pi - answer - h * h / 6, bound = 95 * 0x1p-53 * std::numbers::pi;
  const bool right = sums == sums_here && std::abs(error) <= bound;
  std::printf("tasks %zu: pi = %.16f = %a, error %8.1e, bound %.1e\n", tasks.size(), answer, answer, error, bound);
  std::printf("%s\n", right ? "RIGHT" : "WRONG");
  ray::Shutdown();
  return right ? 0 : 1;
}
