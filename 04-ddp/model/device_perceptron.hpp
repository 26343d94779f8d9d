// device_perceptron.hpp: the perceptron of perceptron.hpp as a sequence of matrix products and small kernels, for a
// device that has these: a GPU (perceptron_gpu.hpp) or, so that its steps can be tested anywhere, the host.
//
// Device offers
//   Buffer<T>(count)              memory of `count` elements, 0 at first, with data(), size() and span()
//   each(count, op)               op(i) for i = 0 ... count - 1, in any order
//   rows(count, op)               op(i, lanes) likewise, with lanes as OneLane of arithmetic.hpp has them
//   product(transpose, rows, columns, inner, a, b, keep, c)     multiply() of blas.hpp, for a and b of type U, c of T
// and carries all of it out in the order of the calls.
#pragma once

#include "../ddp/philox.hpp"
#include "arithmetic.hpp"
#include "blas.hpp"
#include "perceptron.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace model {

// What changes from step to step. It is read from the device's memory, because a CUDA graph repeats its kernels with
// the arguments that they had when it was recorded.
template <class T>
struct StepSettings {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;  // of dropout
  T kept_scale = 1;
  T learning_rate = 0;
};
template <class T>
StepSettings<T> settings_of(const Dropout& dropout, double learning_rate) {
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  return {dropout.seed, dropout.step, threshold, static_cast<T>(1 / (1 - std::ldexp(threshold, -32))),
          static_cast<T>(learning_rate)};
}

// Of all forward passes since it was 0.
struct Totals {
  double loss = 0;
  std::uint64_t right = 0;
  std::uint32_t bad_step = 0;  // number, from 1, of the first step whose loss was not finite; 0: none
};

// The kernels: what is done with one element, or with one row.

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  MODEL_BOTH void operator()(std::size_t i) const { to[i] = static_cast<To>(from[i]); }
};

// Hidden units from their sums (batch x size): bias, ReLU, dropout.
template <class T, class U>
struct FinishHidden {
  const T* sums;
  const T* bias;
  U* units;
  std::size_t size;
  bool relu;
  const std::uint32_t* samples;
  std::uint32_t layer;
  const StepSettings<T>* settings;
  MODEL_BOTH void operator()(std::size_t i) const {
    const std::size_t sample = i / size, unit = i % size;
    T value = sums[i] + bias[unit];
    if (relu) value = value < T(0) ? T(0) : value;  // a NaN stays one
    if (settings->threshold > 0) {
      const ddp::PhiloxWords random = ddp::philox(
          {static_cast<std::uint32_t>(unit / 4), ddp::stream_dropout + layer, samples[sample], settings->step},
          settings->seed);
      value = random[unit % 4] < settings->threshold ? T(0) : value * settings->kept_scale;
    }
    units[i] = static_cast<U>(value);
  }
};

// Outputs from their sums (batch x size), in place: bias, ReLU; then the loss, and the errors.
template <class T, class U>
struct FinishOutputs {
  Loss loss;
  bool relu;
  std::size_t size;
  T* sums;
  const T* bias;
  const T* targets;
  const std::uint8_t* labels;
  U* errors;
  T* losses;
  std::uint8_t* rights;
  template <class Lanes>
  MODEL_BOTH void operator()(std::size_t sample, Lanes lanes) const {
    T* const z = sums + sample * size;
    for (std::size_t j = lanes.first(); j < size; j += lanes.count()) {
      const T value = z[j] + bias[j];
      z[j] = relu && value < T(0) ? T(0) : value;
    }
    const bool by_label = loss == Loss::cross_entropy;
    const SampleScore<T> score = score_sample(loss, relu, size, z, by_label ? nullptr : targets + sample * size,
                                              by_label ? labels[sample] : 0u, errors + sample * size, lanes);
    if (lanes.first() != 0) return;
    losses[sample] = score.loss;
    rights[sample] = score.right;
  }
};

// One row: all samples' losses and rights into the totals.
template <class T>
struct AddUp {
  std::size_t batch;
  const T* losses;
  const std::uint8_t* rights;
  const StepSettings<T>* settings;
  Totals* totals;
  template <class Lanes>
  MODEL_BOTH void operator()(std::size_t, Lanes lanes) const {
    double loss = 0, right = 0;
    for (std::size_t s = lanes.first(); s < batch; s += lanes.count()) {
      loss += static_cast<double>(losses[s]);
      right += rights[s];
    }
    loss = lanes.sum(loss);
    right = lanes.sum(right);
    if (lanes.first() != 0) return;
    totals->loss += loss;
    totals->right += static_cast<std::uint64_t>(right);
    if (!(std::abs(loss) <= std::numeric_limits<double>::max()) && totals->bad_step == 0)
      totals->bad_step = settings->step + 1;
  }
};

// The bias's gradient: one row of it is one column of errors (batch x size), added up in the same order in every run.
template <class T, class U>
struct SumColumn {
  const U* errors;
  std::size_t batch, size;
  bool add;
  T* gradient;
  template <class Lanes>
  MODEL_BOTH void operator()(std::size_t j, Lanes lanes) const {
    T sum = 0;
    for (std::size_t s = lanes.first(); s < batch; s += lanes.count()) sum += static_cast<T>(errors[s * size + j]);
    sum = lanes.sum(sum);
    if (lanes.first() == 0) gradient[j] = add ? gradient[j] + sum : sum;
  }
};

// Errors of hidden units' sums from those of the units. What ReLU or dropout made 0 lets nothing through, and dropout
// scaled the rest.
template <class T, class U>
struct ThroughHidden {
  const T* unit_errors;
  const U* units;
  U* errors;
  bool relu;
  const StepSettings<T>* settings;
  MODEL_BOTH void operator()(std::size_t i) const {
    const bool passes = !relu || static_cast<T>(units[i]) > T(0);
    errors[i] = static_cast<U>(passes ? unit_errors[i] * settings->kept_scale : T(0));
  }
};

// Sgd of optimizer.hpp, for one element. `copy`: of the parameter, for the next step's products; or null.
template <class T, class U>
struct Descend {
  T* parameter;
  T* velocity;
  const T* gradient;
  U* copy;
  T momentum, weight_decay;
  const StepSettings<T>* settings;
  MODEL_BOTH void operator()(std::size_t i) const {
    velocity[i] = or_zero(momentum * velocity[i] + gradient[i] + weight_decay * parameter[i]);
    parameter[i] -= settings->learning_rate * velocity[i];
    if (copy) copy[i] = static_cast<U>(parameter[i]);
  }
};

// Sgd's state on a device.
template <class T, class Device>
class SgdOn {
 public:
  explicit SgdOn(const std::vector<ddp::NamedBlock>& parameters, double momentum = 0, double weight_decay = 0)
      : momentum(static_cast<T>(momentum)), weight_decay(static_cast<T>(weight_decay)) {
    for (const ddp::NamedBlock& parameter : parameters)
      velocity.push_back(std::make_unique<Buffer>(parameter.block.count));
  }

  using Buffer = typename Device::template Buffer<T>;
  T momentum, weight_decay;
  std::vector<std::unique_ptr<Buffer>> velocity;  // of each parameter
};

// T is the type of parameters, gradients, sums and losses; U that of what is multiplied: T, or bfloat16, whose products
// are several times as fast. Then the parameters stay T, and products read rounded copies of the weights: the small
// steps of many updates would be lost in bfloat16's 8 bits. Gradients come out of products that add up in T, so they
// are T too, and go through the same reducer.
template <class T, class U, class Device>
class PerceptronOn {
  template <class V>
  using Buffer = typename Device::template Buffer<V>;
  template <class V>
  using Buffers = std::vector<std::unique_ptr<Buffer<V>>>;
  static constexpr bool copies = !std::is_same_v<T, U>;

 public:
  // For batches of `capacity` samples at most. Throws as Perceptron does.
  PerceptronOn(Device& device, Architecture architecture, std::size_t capacity)
      : device_(device),
        architecture_(std::move(architecture)),
        named_(Perceptron<T>(architecture_, 0).parameters()),
        sums_(capacity * *std::max_element(architecture_.sizes.begin() + 1, architecture_.sizes.end())),
        losses_(capacity),
        rights_(capacity),
        inputs(capacity * architecture_.sizes.front()),
        targets(by_label() ? 1 : capacity * architecture_.sizes.back()),
        labels(by_label() ? capacity : 1),
        samples(capacity),
        settings(1),
        totals(1) {
    for (ddp::NamedBlock& parameter : named_) {
      parameters_.push_back(std::make_unique<Buffer<T>>(parameter.block.count));
      parameter.block = parameters_.back()->span();
      if (copies) weights_.push_back(std::make_unique<Buffer<U>>(parameter.block.count));
    }
    for (std::size_t l = 0; l < architecture_.sizes.size(); ++l) {
      const std::size_t count = capacity * architecture_.sizes[l];
      const bool kept = l == 0 ? copies : l < layers();
      units_.push_back(kept ? std::make_unique<Buffer<U>>(count) : nullptr);
      errors_.push_back(l > 0 ? std::make_unique<Buffer<U>>(count) : nullptr);
    }
  }

  const Architecture& architecture() const { return architecture_; }
  const std::vector<ddp::NamedBlock>& parameters() const { return named_; }
  std::span<T> parameter(std::size_t i) const { return parameters_.at(i)->span(); }
  bool by_label() const { return architecture_.loss == Loss::cross_entropy; }

  void set_gradients(std::vector<std::span<T>> gradients) {
    gradients_ = std::move(gradients);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (gradients_.at(i).size() != parameters_[i]->size())
        throw std::logic_error("Perceptron: a gradient of another size");
  }

  // Throws std::logic_error for a batch that forward() could not take.
  void require_fit(const data::Batch<T>& batch, const Dropout& dropout) const {
    const std::size_t count = batch.size();
    if (count > samples.size() || batch.inputs.size() != count * architecture_.sizes.front() ||
        (by_label() ? batch.labels.size() != count : batch.targets.size() != count * architecture_.sizes.back()))
      throw std::logic_error("Perceptron: a batch that does not fit");
    if (dropout_threshold(dropout.probability) > 0 && !architecture_.hidden_relu)
      throw std::logic_error("Perceptron: dropout without ReLU");
  }

  // After the parameters were written from outside.
  void copy_weights() {
    if constexpr (copies)
      for (std::size_t i = 0; i < parameters_.size(); i += 2)
        device_.each(parameters_[i]->size(), Convert<T, U>{parameters_[i]->data(), weights_[i]->data()});
  }

  // Of the `batch` samples that lie in the buffers below. Adds to `totals`.
  void forward(std::size_t batch) {
    batch_ = batch;
    if constexpr (copies) device_.each(batch * architecture_.sizes[0], Convert<T, U>{inputs.data(), units_[0]->data()});
    for (std::size_t l = 1; l <= layers(); ++l) {
      const std::size_t n = architecture_.sizes[l];
      const T* const bias = parameters_[2 * l - 1]->data();
      device_.product(Transpose::second, batch, n, architecture_.sizes[l - 1], units(l - 1), weights(l), T(0),
                      sums_.data());
      if (l < layers())
        device_.each(batch * n, FinishHidden<T, U>{sums_.data(), bias, units_[l]->data(), n, architecture_.hidden_relu,
                                                   samples.data(), static_cast<std::uint32_t>(l), settings.data()});
      else
        device_.rows(batch, FinishOutputs<T, U>{architecture_.loss, architecture_.output_relu, n, sums_.data(), bias,
                                                targets.data(), labels.data(), errors_[l]->data(), losses_.data(),
                                                rights_.data()});
    }
    if (batch > 0) device_.rows(1, AddUp<T>{batch, losses_.data(), rights_.data(), settings.data(), totals.data()});
  }

  // As Perceptron::backward().
  void backward(const std::function<void(std::size_t)>& ready, bool add) {
    for (std::size_t l = layers(); l >= 1; --l) {
      const std::size_t n = architecture_.sizes[l], below = architecture_.sizes[l - 1];
      const U* const errors = errors_[l]->data();
      device_.rows(n, SumColumn<T, U>{errors, batch_, n, add, gradients_.at(2 * l - 1).data()});
      ready(2 * l - 1);
      device_.product(Transpose::first, n, below, batch_, errors, units(l - 1), add ? T(1) : T(0),
                      gradients_[2 * l - 2].data());
      ready(2 * l - 2);
      if (l == 1) break;
      device_.product(Transpose::none, batch_, below, n, errors, weights(l), T(0), sums_.data());
      device_.each(batch_ * below, ThroughHidden<T, U>{sums_.data(), units_[l - 1]->data(), errors_[l - 1]->data(),
                                                       architecture_.hidden_relu, settings.data()});
    }
  }

  void update(SgdOn<T, Device>& sgd) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      device_.each(parameters_[i]->size(),
                   Descend<T, U>{parameters_[i]->data(), sgd.velocity.at(i)->data(), gradients_.at(i).data(),
                                 copies && i % 2 == 0 ? weights_[i]->data() : nullptr, sgd.momentum, sgd.weight_decay,
                                 settings.data()});
  }

 private:
  std::size_t layers() const { return architecture_.sizes.size() - 1; }
  const U* units(std::size_t layer) const {
    if constexpr (!copies)
      if (layer == 0) return inputs.data();
    return units_[layer]->data();
  }
  const U* weights(std::size_t layer) const {
    if constexpr (copies)
      return weights_[2 * layer - 2]->data();
    else
      return parameters_[2 * layer - 2]->data();
  }

  Device& device_;
  Architecture architecture_;
  std::vector<ddp::NamedBlock> named_;
  Buffers<T> parameters_;
  Buffers<U> weights_;  // copies of the weights, as U, at even numbers
  std::vector<std::span<T>> gradients_;
  Buffers<U> units_;   // of hidden layers, and the inputs as U: capacity x size
  Buffers<U> errors_;  // derivative of the loss by the sums of each layer but the inputs: capacity x size
  Buffer<T> sums_;     // of one layer at a time: capacity x the widest layer
  Buffer<T> losses_;   // of each sample
  Buffer<std::uint8_t> rights_;
  std::size_t batch_ = 0;

 public:
  // What forward() works on: capacity x features, capacity x outputs or labels, and the samples' numbers.
  Buffer<T> inputs, targets;
  Buffer<std::uint8_t> labels;
  Buffer<std::uint32_t> samples;
  Buffer<StepSettings<T>> settings;  // one
  Buffer<Totals> totals;             // one
};

}  // namespace model
