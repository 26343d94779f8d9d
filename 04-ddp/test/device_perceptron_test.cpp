// The perceptron of the GPU, its kernels and their order, on a device that is this host, as a build without nvcc has no
// other. perceptron_gpu_test.cpp is the same on a GPU.
#include "device_perceptron_checks.hpp"
#include "host_device.hpp"

#include <multinode/communicator/data_type.hpp>

namespace device_perceptron_test {

// PerceptronGpu's functions, for the host.
template <class T, class U = T, std::size_t lanes = 1>
class PerceptronHost : public model::PerceptronOn<T, U, Host<lanes>> {
 public:
  using model::PerceptronOn<T, U, Host<lanes>>::PerceptronOn;
  std::vector<T> copy_parameters() { return this->flat_.joined(this->parameters_.span()); }
  std::vector<T> copy_gradients() { return this->flat_.joined(this->gradients_); }
  void initialize(std::uint64_t seed) {
    model::Perceptron<T> start(this->architecture_, 0);
    start.initialize(seed);
    for (std::size_t i = 0; i < this->parameters().size(); ++i)
      std::ranges::copy(start.parameter(i), this->parameter(i).begin());
    this->parameters_changed();
  }
  void load(const data::Batch<T>& batch, const model::Dropout& dropout, double learning_rate) {
    model::require_fit(this->architecture_, this->samples_.size(), batch, dropout);
    std::ranges::copy(batch.inputs, this->inputs_.data());
    if (this->by_label())
      std::ranges::copy(batch.labels, this->labels_.data());
    else
      std::ranges::copy(batch.targets, this->targets_.data());
    std::ranges::copy(batch.samples, this->samples_.data());
    *this->settings_.data() = model::settings_of<T>(dropout, learning_rate);
    this->batch_ = batch.size();
  }
  model::Totals take_totals() { return std::exchange(*this->totals_.data(), {}); }
};

using Models = ::testing::Types<PerceptronHost<double>, PerceptronHost<double, double, 3>, PerceptronHost<float>,
                                PerceptronHost<float, multinode::bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DevicePerceptron, Models);

}  // namespace device_perceptron_test
