// pi_on_ray: the sum of chapter 05's pi_exact.cpp as Ray tasks, once with a task per block and once with a task per 39
// blocks, because a task costs Ray about as much as a block costs the processor. The answer has the bits of chapter 05
// on any number of nodes, because the blocks are added by the same tree. CMakeLists.txt compiles this file twice: as
// this program, and as the library in which Ray's C++ workers find the function of the tasks. Exit status: 0 if the
// bits are those of the same sum without Ray and the error is within its bound, 1 if not.
// After: pi_exact.cpp of chapter 05.
// SPDX-License-Identifier: Apache-2.0
#include <ray/api.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <span>
#include <utility>
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

std::vector<double> block_sums(std::int64_t n, std::int64_t first, std::int64_t count) {
  std::vector<double> sums;
  for (std::int64_t block = first; block < first + count; ++block) sums.push_back(block_sum(n, block));
  return sums;
}
RAY_REMOTE(block_sums);

// The sums of all blocks, by tasks of `batch` blocks, and the seconds that it takes.
std::pair<std::vector<double>, double> sums_on_ray(std::int64_t n, std::int64_t blocks, std::int64_t batch) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<ray::ObjectRef<std::vector<double>>> tasks;
  for (std::int64_t first = 0; first < blocks; first += batch)
    tasks.push_back(ray::Task(block_sums).Remote(n, first, std::min(batch, blocks - first)));
  std::vector<double> sums;
  for (auto& task : tasks) {
    const auto part = ray::Get(task);  // throws what the task threw
    sums.insert(sums.end(), part->begin(), part->end());
  }
  return {sums, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

int main(int argc, char** argv) {
  ray::RayConfig config;
  ray::Init(config, argc, argv);  // joins the cluster of RAY_ADDRESS; without it, starts one for this run

  const std::int64_t n = 10'000'000, blocks = (n - 1 + block_length - 1) / block_length, batch = (blocks + 3) / 4;
  std::vector<double> sums_here;
  for (std::int64_t block = 0; block < blocks; ++block) sums_here.push_back(block_sum(n, block));
  bool right = sums_on_ray(n, blocks, 1).first == sums_here;  // starts the workers
  std::vector<double> ratios;
  for (int round = 0; round < 9; ++round) {  // the two ways in turn: what else the machine does hits both
    const auto [one_by_one, slow] = sums_on_ray(n, blocks, 1);
    const auto [batches, fast] = sums_on_ray(n, blocks, batch);
    right = right && one_by_one == sums_here && batches == sums_here;
    ratios.push_back(slow / fast);
  }
  std::sort(ratios.begin(), ratios.end());

  const double answer = ((f(0) + f(1)) / 2 + tree_sum(sums_here)) / double(n), h = 1 / double(n);
  // A term goes through at most 95 roundings: 5 to make it, 63 in its chain, 10 + 14 in the trees, 3 at the end.
  const double error = std::numbers::pi - answer - h * h / 6, bound = 95 * 0x1p-53 * std::numbers::pi;
  right = right && std::abs(error) <= bound;
  std::printf("pi = %.16f = %a, error %8.1e, bound %.1e\n", answer, answer, error, bound);
  std::printf("%d tasks of 1 block take %.1f times as long as 4 tasks of %d (median of 9; %.1f to %.1f)\n", int(blocks),
              ratios[4], int(batch), ratios.front(), ratios.back());
  std::printf("%s\n", right ? "RIGHT" : "WRONG");
  ray::Shutdown();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("pi_on_ray: standard output"), 1;
  return right ? 0 : 1;
}
