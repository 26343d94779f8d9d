// The perceptron of the GPU, its kernels and their order, on a device that is this host: what a machine without a GPU
// can show of it. perceptron_gpu_test.cpp is the same on a GPU.
#include "device_perceptron_checks.hpp"

#include <Eigen/Core>

#include <barrier>
#include <numeric>
#include <thread>

namespace {

// A thread that shares rows with others, as a warp's lanes do.
class Lane {
 public:
  struct Group {
    std::barrier<> barrier;
    std::vector<double> values;
    explicit Group(std::size_t lanes) : barrier(static_cast<std::ptrdiff_t>(lanes)), values(lanes) {}
  };
  Lane(Group& group, std::size_t number) : group_(group), number_(number) {}
  std::size_t first() const { return number_; }
  std::size_t count() const { return group_.values.size(); }
  template <class T>
  T sum(T value) {
    return static_cast<T>(together(value, [](double a, double b) { return a + b; }));
  }
  template <class T>
  T largest(T value) {
    return static_cast<T>(together(value, [](double a, double b) { return std::max(a, b); }));
  }
  bool all(bool value) { return sum(value ? 0 : 1) == 0; }

 private:
  template <class Combine>
  double together(double value, Combine combine) {
    group_.values[number_] = value;
    group_.barrier.arrive_and_wait();
    const double result =
        std::accumulate(group_.values.begin() + 1, group_.values.end(), group_.values.front(), combine);
    group_.barrier.arrive_and_wait();  // before the next value
    return result;
  }
  Group& group_;
  std::size_t number_;
};

template <std::size_t lanes>
struct Host {
  template <class T>
  class Buffer {
   public:
    explicit Buffer(std::size_t count) : elements_(count) {}
    T* data() { return elements_.data(); }
    const T* data() const { return elements_.data(); }
    std::size_t size() const { return elements_.size(); }
    std::span<T> span() { return elements_; }

   private:
    std::vector<T> elements_;
  };

  template <class Op>
  void each(std::size_t count, Op op) {
    for (std::size_t i = count; i-- > 0;) op(i);  // the order must not matter
  }
  template <class Op>
  void rows(std::size_t count, Op op) {
    if constexpr (lanes == 1) {
      for (std::size_t i = count; i-- > 0;) op(i, model::OneLane());
    } else {
      Lane::Group group(lanes);
      std::vector<std::jthread> threads;
      for (std::size_t lane = 0; lane < lanes; ++lane)
        threads.emplace_back([&group, lane, count, op] {
          for (std::size_t i = count; i-- > 0;) op(i, Lane(group, lane));
        });
    }
  }
  template <class T, class U>
  void product(model::Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const U* a,
               const U* b, T keep, T* c) {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        T sum = 0;
        for (std::size_t k = 0; k < inner; ++k)
          sum += static_cast<T>(a[transpose == model::Transpose::first ? k * rows + i : i * inner + k]) *
                 static_cast<T>(b[transpose == model::Transpose::second ? j * inner + k : k * columns + j]);
        c[i * columns + j] = keep == 0 ? sum : keep * c[i * columns + j] + sum;
      }
  }
};

// PerceptronGpu's functions, for the host.
template <class T, class U = T, std::size_t lanes = 1>
class PerceptronHost {
 public:
  using value_type = T;
  using product_type = U;
  using Sgd = model::SgdOn<T, Host<lanes>>;

  PerceptronHost(const model::Architecture& architecture, std::size_t capacity)
      : on_(host_, architecture, capacity), start_(architecture, 0) {
    std::size_t count = 0;
    for (const ddp::NamedBlock& parameter : on_.parameters()) count += parameter.block.count;
    gradients_.resize(count);
  }
  std::vector<ddp::NamedBlock> parameters() { return on_.parameters(); }
  std::vector<T> copy_parameters() {
    return copy([&](std::size_t i) { return on_.parameter(i); });
  }
  std::vector<T> copy_gradients() { return gradients_; }
  std::span<T> gradient_storage() { return gradients_; }
  void set_gradients(std::vector<std::span<T>> gradients) { on_.set_gradients(std::move(gradients)); }
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
  void update(Sgd& sgd) { on_.update(sgd); }
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
                                PerceptronHost<float, Eigen::bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DevicePerceptron, Models);

}  // namespace
