// perceptron.hpp: a multilayer perceptron and its gradients, as a sequence of matrix products and small operations on a
// Device: the CPU (cpu.hpp) or a GPU (cuda.hpp).
//
// A Device offers
//   Buffer<T>(count)              memory of `count` elements, 0 at first, with data(), size() and span()
//   Input<T>(count)               what a batch is loaded into: load(device, elements of the host), data()
//   each(count, op)               op(i) for i = 0 ... count - 1, in any order; `width`: of FinishHidden
//   rows(count, op)               op(i, lanes) likewise, with lanes as OneLane of arithmetic.hpp has them
//   product(transpose, rows, columns, inner, a, b, keep, c)     multiply() of blas.hpp
//   column_sums(rows, columns, ones, a, keep, sums)             sums = keep sums + those of a's columns
//   copy(from, to)                elements in its memory to the host's, and back; wait() ends it
//   sum(communicator, numbers)    an all-reduce of numbers of the host
//   attach(world, communicator)   see training_step.hpp
// and carries all of it out in the order of the calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu.hpp"
#include "optimizer.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>

namespace model {

template <class T, class D>
class PerceptronOn {
  template <class V>
  using Buffer = typename D::template Buffer<V>;
  template <class V>
  using Input = typename D::template Input<V>;
  template <class V>
  using Buffers = std::vector<std::unique_ptr<Buffer<V>>>;

 public:
  using value_type = T;
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
  std::span<T> gradient(std::size_t i) { return flat_.part(gradients_.span(), i); }
  // One behind the other, on the host.
  std::vector<T> copy_parameters() { return copy(parameters_.span()); }
  std::vector<T> copy_gradients() { return copy(gradients_.span()); }

  void initialize(std::uint64_t seed);  // see initial_values()

  // Where backward() puts the gradients, in Flat's order.
  std::span<T> gradient_storage() { return gradients_.span(); }

  // A step is load(), and then the others in this order; without update() where gradients are added up, or without
  // backward(), too, where the model is evaluated. Another order throws std::logic_error. The batch stays as it is
  // until backward() has returned (on a GPU: until load() has). load() throws as require_fit().
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
  const T* units(std::size_t layer) { return layer == 0 ? inputs_.data() : units_[layer - 1]->data(); }
  const T* weights(std::size_t layer) { return parameter(2 * layer - 2).data(); }
  enum class Done { nothing, load, forward, backward };
  void next(Done before, Done now, const char* call) {
    if (done_ != before) throw std::logic_error(std::string("Perceptron::") + call + "() without the call before it");
    done_ = now;
  }
  template <class Optimizer>
  void update_by(Optimizer& optimizer) {
    next(Done::backward, Done::nothing, "update");
    optimizer.begin_step(device_, settings_);
    device_.each(flat_.size(), optimizer.operation(0, parameters_.data(), gradients_.data(), settings_));
  }

  Architecture architecture_;
  std::size_t capacity_;
  D device_;
  Flat<T> flat_;
  Buffer<T> parameters_;
  Buffer<T> gradients_;
  Buffer<T> ones_;     // capacity
  Buffers<T> units_;   // of layers 1, 2 ..., as their sums: capacity x size
  Buffers<T> errors_;  // derivative of the loss by these sums
  Buffer<T> losses_;   // of each sample
  Buffer<std::uint8_t> rights_;

  // The batch: capacity x features, capacity x outputs or labels, and the samples' numbers.
  Done done_ = Done::nothing;
  std::size_t batch_ = 0;
  Input<T> inputs_, targets_;
  Input<std::uint8_t> labels_;
  Input<std::uint32_t> samples_;
  StepSettings<T> settings_;
  Buffer<Totals> totals_;  // one
};

template <class T, class D>
PerceptronOn<T, D>::PerceptronOn(Architecture architecture, std::size_t capacity)
    : architecture_(std::move(architecture)),
      capacity_(capacity),
      flat_(parameters_of<T>(architecture_)),
      parameters_(flat_.size()),
      gradients_(flat_.size()),
      ones_(capacity),
      losses_(capacity),
      rights_(capacity),
      inputs_(capacity * architecture_.sizes.front()),
      targets_(by_label() ? 1 : capacity * architecture_.sizes.back()),
      labels_(by_label() ? capacity : 1),
      samples_(capacity),
      totals_(1) {
  device_.each(capacity, Fill<T>{ones_.data(), T(1)});
  for (std::size_t l = 1; l <= layers(); ++l)
    for (Buffers<T>* const buffers : {&units_, &errors_})
      buffers->push_back(std::make_unique<Buffer<T>>(capacity * architecture_.sizes[l]));
}

template <class T, class D>
std::vector<T> PerceptronOn<T, D>::copy(std::span<T> memory) {
  std::vector<T> host(memory.size());
  device_.copy(std::span<const T>(memory), host.data());
  device_.wait();
  return flat_.joined(host);
}

template <class T, class D>
void PerceptronOn<T, D>::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < flat_.count(); ++i) {
    const std::vector<T> values = initial_values<T>(architecture_, i, seed);
    device_.copy(std::span<const T>(values), parameter(i).data());
    device_.wait();
  }
}

template <class T, class D>
void PerceptronOn<T, D>::load(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate) {
  require_fit(architecture_, capacity_, batch, dropout);
  done_ = Done::load;
  batch_ = batch.size();
  inputs_.load(device_, batch.inputs);
  if (by_label())
    labels_.load(device_, batch.labels);
  else
    targets_.load(device_, batch.targets);
  samples_.load(device_, batch.samples);
  settings_ = settings_of<T>(dropout, learning_rate);
}

template <class T, class D>
void PerceptronOn<T, D>::forward() {
  next(Done::load, Done::forward, "forward");
  for (std::size_t l = 1; l <= layers(); ++l) {
    const std::size_t n = architecture_.sizes[l];
    const T* const bias = parameter(2 * l - 1).data();
    T* const sums = units_[l - 1]->data();
    device_.product(Transpose::second, batch_, n, architecture_.sizes[l - 1], units(l - 1), weights(l), T(0), sums);
    using Finish = FinishHidden<T, D::width>;
    if (l < layers())
      device_.each(batch_ * Finish::pieces(n), Finish{sums, bias, n, architecture_.hidden_relu, samples_.data(),
                                                      static_cast<std::uint32_t>(l), settings_});
    else
      device_.rows(batch_,
                   FinishOutputs<T>{architecture_.loss, architecture_.output_relu, n, sums, bias, targets_.data(),
                                    labels_.data(), errors_[l - 1]->data(), losses_.data(), rights_.data()});
  }
  if (batch_ > 0) device_.rows(1, AddUp<T>{batch_, losses_.data(), rights_.data(), settings_.step, totals_.data()});
}

template <class T, class D>
void PerceptronOn<T, D>::backward(const std::function<void(std::size_t)>& ready, bool add) {
  next(Done::forward, Done::backward, "backward");
  for (std::size_t l = layers(); l >= 1; --l) {
    const std::size_t n = architecture_.sizes[l], below = architecture_.sizes[l - 1];
    const T* const errors = errors_[l - 1]->data();
    const T keep = add ? T(1) : T(0);
    device_.column_sums(batch_, n, ones_.data(), errors, keep, gradient(2 * l - 1).data());
    ready(2 * l - 1);
    device_.product(Transpose::first, n, below, batch_, errors, units(l - 1), keep, gradient(2 * l - 2).data());
    ready(2 * l - 2);  // its reduction overlaps the product below
    if (l == 1) break;
    T* const errors_below = errors_[l - 2]->data();
    device_.product(Transpose::none, batch_, below, n, errors, weights(l), T(0), errors_below);
    if (architecture_.hidden_relu)
      device_.each(batch_ * below, ThroughHidden<T>{units(l - 1), errors_below, settings_.kept_scale});
  }
}

template <class T, class D>
void PerceptronOn<T, D>::update(Sgd& sgd) {
  update_by(sgd);
}
template <class T, class D>
void PerceptronOn<T, D>::update(Adam& adam) {
  update_by(adam);
}

template <class T, class D>
Totals PerceptronOn<T, D>::take_totals() {
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
using Perceptron = PerceptronOn<T, Cpu>;
template <class T>
using Sgd = SgdOn<T, Cpu>;
template <class T>
using Adam = AdamOn<T, Cpu>;
extern template class PerceptronOn<float, Cpu>;
extern template class PerceptronOn<double, Cpu>;

}  // namespace model
