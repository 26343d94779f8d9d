// The perceptron of the GPU, its kernels and their order, on a device that is this host: what a machine without a GPU
// can show of it. perceptron_gpu_test.cpp is the same on a GPU.
#include "device_perceptron_checks.hpp"
#include "host_device.hpp"

#include <multinode/data_type.hpp>

namespace device_perceptron_test {

// PerceptronGpu's functions, for the host.
template <class T, class U = T, std::size_t lanes = 1>
class PerceptronHost {
 public:
  using value_type = T;
  using product_type = U;
  using Sgd = model::SgdOn<T, Host<lanes>>;
  using Adam = model::AdamOn<T, Host<lanes>>;

  PerceptronHost(const model::Architecture& architecture, std::size_t capacity)
      : on_(host_, architecture, capacity), start_(architecture, 0), gradients_(on_.flat().size()) {}
  std::vector<ddp::NamedBlock> parameters() { return on_.parameters(); }
  std::vector<T> copy_parameters() {
    return copy([&](std::size_t i) { return on_.parameter(i); });
  }
  std::vector<T> copy_gradients() {
    return copy([&](std::size_t i) { return on_.gradient(i); });
  }
  std::span<T> gradient_storage() { return gradients_; }
  void set_gradients(const std::vector<std::span<T>>& gradients) { on_.set_gradients(gradients); }
  void initialize(std::uint64_t seed) {
    start_.initialize(seed);
    for (std::size_t i = 0; i < on_.parameters().size(); ++i)
      std::copy(start_.parameter(i).begin(), start_.parameter(i).end(), on_.parameter(i).begin());
    on_.copy_weights();
  }
  void load(const data::Batch<T>& batch, const model::Dropout& dropout, double learning_rate) {
    on_.require_fit(batch, dropout);
    std::copy(batch.inputs.begin(), batch.inputs.end(), on_.inputs.data());
    if (on_.by_label())
      std::copy(batch.labels.begin(), batch.labels.end(), on_.labels.data());
    else
      std::copy(batch.targets.begin(), batch.targets.end(), on_.targets.data());
    std::copy(batch.samples.begin(), batch.samples.end(), on_.samples.data());
    *on_.settings.data() = model::settings_of<T>(dropout, learning_rate);
    batch_ = batch.size();
  }
  void parameters_changed() { on_.copy_weights(); }
  void forward() { on_.forward(batch_); }
  void backward(const std::function<void(std::size_t)>& ready, bool add = false) { on_.backward(ready, add); }
  template <class Optimizer>
  void update(Optimizer& optimizer) {
    on_.update(optimizer);
  }
  model::Totals take_totals() { return std::exchange(*on_.totals.data(), {}); }

 private:
  template <class Part>
  std::vector<T> copy(Part part) {
    std::vector<T> all;
    for (std::size_t i = 0; i < on_.parameters().size(); ++i) all.insert(all.end(), part(i).begin(), part(i).end());
    return all;
  }

  Host<lanes> host_;
  model::PerceptronOn<T, U, Host<lanes>> on_;
  model::Perceptron<T> start_;
  std::vector<T> gradients_;
  std::size_t batch_ = 0;
};

using Models = ::testing::Types<PerceptronHost<double>, PerceptronHost<double, double, 3>, PerceptronHost<float>,
                                PerceptronHost<float, multinode::bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DevicePerceptron, Models);

}  // namespace device_perceptron_test
