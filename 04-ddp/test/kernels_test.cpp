// The kernels of the perceptron, on this host: by one thread, and by four that share rows as a warp does.
#include "host_device.hpp"
#include "kernel_checks.hpp"

#include <multinode/data_type.hpp>

namespace kernels_test {

template <class U, std::size_t lanes>
struct OnHost {
  using element = U;
  using Device = Host<lanes>;
  static const char* absent() { return nullptr; }
  Device device;
  template <class T>
  void put(T* to, const std::vector<T>& numbers) {
    std::copy(numbers.begin(), numbers.end(), to);
  }
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) {
    return {from, from + count};
  }
};

using Places = ::testing::Types<OnHost<float, 1>, OnHost<float, 4>, OnHost<multinode::bfloat16, 4>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Host, Kernels, Places);

}  // namespace kernels_test
