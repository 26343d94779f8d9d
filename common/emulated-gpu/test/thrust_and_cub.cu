// Thrust and CUB on emulated GPUs: sort, reduce and scan against the C++ standard library. For foreign_test.py.
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <cub/cub.cuh>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

int main() {
  std::vector<int> host(20'000);
  unsigned x = 1;
  for (int& value : host) value = static_cast<int>((x = x * 1664525u + 1013904223u) >> 3) % 100'000;
  thrust::device_vector<int> device(host.begin(), host.end()), sums(host.size()), maximum(1);
  const auto equal = [](const thrust::device_vector<int>& is, const std::vector<int>& wanted) {
    return std::equal(wanted.begin(), wanted.end(), std::vector<int>(is.begin(), is.end()).begin());
  };
  std::size_t bytes = 0;
  const auto find_maximum = [&](void* memory) {
    return cub::DeviceReduce::Max(memory, bytes, device.begin(), maximum.begin(), static_cast<int>(host.size()));
  };
  bool right = find_maximum(nullptr) == cudaSuccess;
  thrust::device_vector<char> memory(bytes);
  right = right && find_maximum(thrust::raw_pointer_cast(memory.data())) == cudaSuccess;
  right = right && maximum[0] == *std::max_element(host.begin(), host.end());
  right = right && thrust::reduce(device.begin(), device.end(), 0L) == std::accumulate(host.begin(), host.end(), 0L);
  thrust::sort(device.begin(), device.end());
  std::sort(host.begin(), host.end());
  right = right && equal(device, host);
  thrust::inclusive_scan(device.begin(), device.end(), sums.begin());
  std::partial_sum(host.begin(), host.end(), host.begin());
  right = right && equal(sums, host);
  std::printf("sort, reduce, scan: %s\n", right ? "RIGHT" : "WRONG");
  return right ? 0 : 1;
}
