#include "gradient_memory_gpu.hpp"

#include <multinode/device.hpp>

namespace ddp {

namespace {

template <class T>
__global__ void multiply_by(T* elements, std::size_t count, T factor) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) elements[i] *= factor;
}

}  // namespace

template <class T>
void GradientMemoryGpu<T>::scale(std::span<T> elements, T factor) {
  if (elements.empty()) return;
  constexpr unsigned threads = 256;
  const auto blocks = static_cast<unsigned>((elements.size() + threads - 1) / threads);
  multiply_by<<<blocks, threads, 0, stream_>>>(elements.data(), elements.size(), factor);
  multinode::check(cudaGetLastError());
}

template <class T>
void GradientMemoryGpu<T>::move(std::span<T> storage, std::span<const typename GradientMemory<T>::Move> moves) {
  const multinode::DeviceBuffer<T> before(storage.size());
  const auto copy = [this](T* to, const T* from, std::size_t count) {
    multinode::check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToDevice, stream_));
  };
  copy(before.data(), storage.data(), storage.size());
  for (const auto& m : moves) copy(storage.data() + m.to, before.data() + m.from, m.count);
}

template class GradientMemoryGpu<float>;
template class GradientMemoryGpu<double>;

}  // namespace ddp
