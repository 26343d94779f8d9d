// perceptron.hpp: a multilayer perceptron and its gradients, as a sequence of matrix products and small operations on a
// Device: the CPU (cpu.hpp) or a GPU (cuda.hpp).
//
// Device(tf32), see Architecture, offers
//   Buffer<T>(count)              memory of `count` elements, 0 at first, with data(), size() and span()
//   Input<T>(count)               what a batch is loaded into: load(device, elements of the host), data()
//   each(count, op)               op(i) for i = 0 ... count - 1, in any order; `width`: of FinishHidden
//   rows(count, op)               op(i, lanes) likewise, with lanes as OneLane of arithmetic.hpp has them
//   product(transpose, rows, columns, inner, a, b, keep, c)     multiply() of blas.hpp, for a and b of type U, c of T
//   column_sums(rows, columns, ones, a, keep, sums)             sums = keep sums + those of a's columns
//   copy(from, to)                elements in its memory to the host's, and back; wait() ends it
//   sum(communicator, numbers)    an all-reduce of numbers of the host
//   attach(world, communicator), HostCopies                     see training_step.hpp
// and carries all of it out in the order of the calls.
#pragma once

#include "cpu.hpp"
#include "optimizer.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <type_traits>

namespace model {

// T is the type of parameters, gradients, sums and losses; U that of what is multiplied: T, or bfloat16, whose products
// are several times as fast. Then the parameters stay T, and products read rounded copies of the weights: the small
// steps of many updates would be lost in bfloat16's 8 bits. Gradients come out of products that add up in T, so they
// are T too, and go through the same reducer.
template <class T, class U, class D>
class PerceptronOn {
  template <class V>
  using Buffer = typename D::template Buffer<V>;
  template <class V>
  using Input = typename D::template Input<V>;
  template <class V>
  using Buffers = std::vector<std::unique_ptr<Buffer<V>>>;
  static constexpr bool copies = !std::is_same_v<T, U>;

 public:
  using value_type = T;
  using product_type = U;
  using Device = D;
  using Sgd = SgdOn<T, D>;
  using Adam = AdamOn<T, D>;

  // For batches of `capacity` samples at most. Throws std::logic_error for sizes that make no network.
  PerceptronOn(Architecture architecture, std::size_t capacity);

  const Architecture& architecture() const { return architecture_; }
  D& device() { return device_; }

  // Memory of the device.
  std::vector<ddp::NamedBlock> parameters() { return flat_.blocks(parameters_.span()); }
  std::span<T> parameter(std::size_t i) { return flat_.part(parameters_.span(), i); }
  std::span<T> gradient(std::size_t i) const { return flat_.part(gradients_, i); }
  // One behind the other, on the host.
  std::vector<T> copy_parameters() { return copy(parameters_.span()); }
  std::vector<T> copy_gradients() { return copy(gradients_); }

  void initialize(std::uint64_t seed);  // see initial_values()
  void parameters_changed();            // from outside: call it, or products use the old ones

  // Where backward() puts the gradients, in Flat's order: storage_size() elements that set_gradients() names and that
  // outlive the model, or else the model's own, which the first call of gradient_storage() makes.
  std::size_t storage_size() const { return flat_.size(); }
  std::span<T> gradient_storage();
  void set_gradients(std::span<T> storage);

  // A step is load(), and then the others, which take all that changes from step to step from the device's memory: they
  // can be recorded as a CUDA graph and repeated. The batch stays as it is until backward() has returned (on a GPU:
  // until load() has). Throws as require_fit().
  void load(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate = 0);
  void load(const data::Batch<T>&& batch, const Dropout& dropout, double learning_rate = 0) = delete;
  void forward();  // adds to the totals
  // Gradients of the SUM of the losses, from the last parameter to the first; ready(i) is called as soon as gradient i
  // is complete. `add`: to what is there. An empty batch gives gradients of 0.
  void backward(const std::function<void(std::size_t)>& ready, bool add = false);
  void update(Sgd& sgd);
  void update(Adam& adam);

  Totals take_totals();  // of all forward passes since the last call
  // Only on the CPU: as they are now.
  const Totals& totals() { return *totals_.data(); }

 private:
  std::size_t layers() const { return architecture_.sizes.size() - 1; }
  bool by_label() const { return architecture_.loss == Loss::cross_entropy; }
  std::vector<T> copy(std::span<T> memory);
  U* copies_of_parameters() { return copies ? copies_.data() : nullptr; }
  const U* units(std::size_t layer) {
    if constexpr (!copies)
      if (layer == 0) return inputs_.data();
    return units_[layer]->data();
  }
  const U* weights(std::size_t layer) {
    const T* const weights = parameter(2 * layer - 2).data();
    if constexpr (copies)
      return copies_.data() + (weights - parameters_.data());
    else
      return weights;
  }
  // Where the T go that become `to`'s: there, if they are of its type.
  T* sums_for(U* to) {
    if constexpr (copies)
      return sums_.data();
    else
      return to;
  }
  template <class Optimizer>
  void update_by(Optimizer& optimizer) {
    optimizer.begin_step(device_, settings_.data());
    device_.each(flat_.size(), optimizer.operation(0, parameters_.data(), gradients_.data(), copies_of_parameters(),
                                                   settings_.data()));
  }

  Architecture architecture_;
  std::size_t capacity_;
  D device_;
  Flat<T> flat_;
  Buffer<T> parameters_;
  Buffer<U> copies_;  // of the parameters, as U
  std::unique_ptr<Buffer<T>> own_gradients_;
  std::span<T> gradients_;
  Buffer<U> ones_;     // capacity
  Buffers<U> units_;   // of hidden layers, and the inputs as U: capacity x size
  Buffers<U> errors_;  // derivative of the loss by the sums of each layer but the inputs: capacity x size
  Buffer<T> sums_;     // of the outputs; and of other layers where U is not T: capacity x the widest layer
  Buffer<T> losses_;   // of each sample
  Buffer<std::uint8_t> rights_;

  // The batch: capacity x features, capacity x outputs or labels, and the samples' numbers.
  std::size_t batch_ = 0;
  Input<T> inputs_, targets_;
  Input<std::uint8_t> labels_;
  Input<std::uint32_t> samples_;
  StepSettings<T> next_settings_;
  Input<StepSettings<T>> settings_;  // one
  Buffer<Totals> totals_;            // one
};

template <class T, class U, class D>
PerceptronOn<T, U, D>::PerceptronOn(Architecture architecture, std::size_t capacity)
    : architecture_(std::move(architecture)),
      capacity_(capacity),
      device_(architecture_.tf32),
      flat_(parameters_of<T>(architecture_)),
      parameters_(flat_.size()),
      copies_(copies ? flat_.size() : 1),
      ones_(capacity),
      sums_(capacity * (copies ? std::ranges::max(architecture_.sizes) : architecture_.sizes.back())),
      losses_(capacity),
      rights_(capacity),
      inputs_(capacity * architecture_.sizes.front()),
      targets_(by_label() ? 1 : capacity * architecture_.sizes.back()),
      labels_(by_label() ? capacity : 1),
      samples_(capacity),
      settings_(1),
      totals_(1) {
  device_.each(capacity, Fill<U>{ones_.data(), static_cast<U>(1.0f)});
  for (std::size_t l = 0; l <= layers(); ++l) {
    const std::size_t count = capacity * architecture_.sizes[l];
    const bool kept = l == 0 ? copies : l < layers();
    units_.push_back(kept ? std::make_unique<Buffer<U>>(count) : nullptr);
    errors_.push_back(l > 0 ? std::make_unique<Buffer<U>>(count) : nullptr);
  }
}

template <class T, class U, class D>
std::vector<T> PerceptronOn<T, U, D>::copy(std::span<T> memory) {
  std::vector<T> host(memory.size());
  device_.copy(std::span<const T>(memory), host.data());
  device_.wait();
  return flat_.joined(host);
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < flat_.count(); ++i) {
    const std::vector<T> values = initial_values<T>(architecture_, i, seed);
    device_.copy(std::span<const T>(values), parameter(i).data());
    device_.wait();
  }
  parameters_changed();
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::parameters_changed() {
  if constexpr (copies) device_.each(flat_.size(), Convert<T, U>{parameters_.data(), copies_.data()});
}

template <class T, class U, class D>
std::span<T> PerceptronOn<T, U, D>::gradient_storage() {
  if (gradients_.empty()) {
    own_gradients_ = std::make_unique<Buffer<T>>(flat_.size());
    gradients_ = own_gradients_->span();
  }
  return gradients_;
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::set_gradients(std::span<T> storage) {
  if (storage.size() != flat_.size()) throw std::logic_error("Perceptron: storage of another size for the gradients");
  gradients_ = storage;
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::load(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate) {
  require_fit(architecture_, capacity_, batch, dropout);
  batch_ = batch.size();
  inputs_.load(device_, batch.inputs);
  if (by_label())
    labels_.load(device_, batch.labels);
  else
    targets_.load(device_, batch.targets);
  samples_.load(device_, batch.samples);
  next_settings_ = settings_of<T>(dropout, learning_rate);
  settings_.load(device_, {&next_settings_, 1});
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::forward() {
  if constexpr (copies) device_.each(batch_ * architecture_.sizes[0], Convert<T, U>{inputs_.data(), units_[0]->data()});
  for (std::size_t l = 1; l <= layers(); ++l) {
    const std::size_t n = architecture_.sizes[l];
    const T* const bias = parameter(2 * l - 1).data();
    T* const sums = l < layers() ? sums_for(units_[l]->data()) : sums_.data();
    device_.product(Transpose::second, batch_, n, architecture_.sizes[l - 1], units(l - 1), weights(l), T(0), sums);
    using Finish = FinishHidden<T, U, D::width>;
    if (l < layers())
      device_.each(batch_ * Finish::pieces(n),
                   Finish{sums, bias, units_[l]->data(), n, architecture_.hidden_relu, samples_.data(),
                          static_cast<std::uint32_t>(l), settings_.data()});
    else
      device_.rows(batch_,
                   FinishOutputs<T, U>{architecture_.loss, architecture_.output_relu, n, sums, bias, targets_.data(),
                                       labels_.data(), errors_[l]->data(), losses_.data(), rights_.data()});
  }
  if (batch_ > 0) device_.rows(1, AddUp<T>{batch_, losses_.data(), rights_.data(), settings_.data(), totals_.data()});
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::backward(const std::function<void(std::size_t)>& ready, bool add) {
  for (std::size_t l = layers(); l >= 1; --l) {
    const std::size_t n = architecture_.sizes[l], below = architecture_.sizes[l - 1];
    const U* const errors = errors_[l]->data();
    const T keep = add ? T(1) : T(0);
    device_.column_sums(batch_, n, ones_.data(), errors, keep, gradient(2 * l - 1).data());
    ready(2 * l - 1);
    device_.product(Transpose::first, n, below, batch_, errors, units(l - 1), keep, gradient(2 * l - 2).data());
    ready(2 * l - 2);  // its reduction overlaps the product below
    if (l == 1) break;
    T* const unit_errors = sums_for(errors_[l - 1]->data());
    device_.product(Transpose::none, batch_, below, n, errors, weights(l), T(0), unit_errors);
    if (copies || architecture_.hidden_relu)
      device_.each((batch_ * below + D::width - 1) / D::width,
                   ThroughHidden<T, U, D::width>{unit_errors, units_[l - 1]->data(), errors_[l - 1]->data(),
                                                 batch_ * below, architecture_.hidden_relu, settings_.data()});
  }
}

template <class T, class U, class D>
void PerceptronOn<T, U, D>::update(Sgd& sgd) {
  update_by(sgd);
}
template <class T, class U, class D>
void PerceptronOn<T, U, D>::update(Adam& adam) {
  update_by(adam);
}

template <class T, class U, class D>
Totals PerceptronOn<T, U, D>::take_totals() {
  Totals totals;
  device_.copy(std::span<const Totals>(totals_.span()), &totals);
  device_.wait();
  const Totals none;
  device_.copy(std::span<const Totals>(&none, 1), totals_.data());
  device_.wait();
  return totals;
}

// Those on the CPU.
template <class T>
using Perceptron = PerceptronOn<T, T, Cpu>;
template <class T>
using Sgd = SgdOn<T, Cpu>;
template <class T>
using Adam = AdamOn<T, Cpu>;
extern template class PerceptronOn<float, float, Cpu>;
extern template class PerceptronOn<double, double, Cpu>;

}  // namespace model
