// The kernels of the perceptron on a GPU. Skipped where there is none.
#include "kernel_checks.hpp"
#include "model/kernels.cuh"

namespace {

template <class U>
struct OnGpu {
  using element = U;
  using Device = model::Cuda;
  static const char* absent() { return multinode::device_count() == 0 ? "no GPU can be used here" : nullptr; }
  Device device;
  template <class T>
  void put(T* to, const std::vector<T>& numbers) {
    multinode::check(
        cudaMemcpyAsync(to, numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice, device.stream()));
    multinode::check(cudaStreamSynchronize(device.stream()));
  }
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) {
    std::vector<T> numbers(count);
    multinode::check(cudaMemcpyAsync(numbers.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, device.stream()));
    multinode::check(cudaStreamSynchronize(device.stream()));
    return numbers;
  }
};

using Places = ::testing::Types<OnGpu<float>, OnGpu<__nv_bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, Kernels, Places);

}  // namespace
