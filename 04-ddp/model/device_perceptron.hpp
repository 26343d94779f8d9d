// device_perceptron.hpp: the perceptron of perceptron.hpp as a sequence of matrix products and small kernels, for a
// device that has these: a GPU (perceptron_gpu.hpp) or, so that its steps can be tested anywhere, the host.
//
// Device(tf32), see Architecture, offers
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
#include <string>
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

// Where parameters lie in one piece of memory, so that one kernel updates all of them: as the reducer lays out their
// gradients, the last parameter first, each at a multiple of ddp::device_alignment bytes.
template <class T>
class Flat {
 public:
  explicit Flat(std::vector<ddp::NamedBlock> parameters) : blocks_(std::move(parameters)) {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      offsets_.insert(offsets_.begin(), size_);
      size_ += ddp::padded(blocks_[i].block.count, sizeof(T), ddp::device_alignment);
    }
  }
  std::size_t size() const { return size_; }  // elements, with those between the parameters
  std::span<T> part(std::span<T> memory, std::size_t i) const {
    return memory.subspan(offsets_.at(i), blocks_[i].block.count);
  }
  // The parts of `memory`, which is the host's, one behind the other.
  std::vector<T> joined(std::span<T> memory) const {
    std::vector<T> all;
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      all.insert(all.end(), part(memory, i).begin(), part(memory, i).end());
    return all;
  }
  // The parameters' names and shapes for other memory; `what` is put in front of the names.
  std::vector<ddp::NamedBlock> blocks(std::span<T> memory, const std::string& what = "") const {
    std::vector<ddp::NamedBlock> named = blocks_;
    for (std::size_t i = 0; i < named.size(); ++i) named[i] = {what + named[i].name, named[i].shape, part(memory, i)};
    return named;
  }

 private:
  std::vector<ddp::NamedBlock> blocks_;
  std::vector<std::size_t> offsets_;
  std::size_t size_ = 0;
};

// The kernels: what is done with one element, or with one row.

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  MODEL_BOTH void operator()(std::size_t i) const { to[i] = static_cast<To>(from[i]); }
};

template <class T>
struct Scale {
  T* elements;
  T factor;
  MODEL_BOTH void operator()(std::size_t i) const { elements[i] *= factor; }
};

template <class T>
struct Fill {
  T* to;
  T value;
  MODEL_BOTH void operator()(std::size_t i) const { to[i] = value; }
};

// Hidden units from their sums (batch x size): bias, ReLU, dropout. Four at a time, the random numbers of one Philox
// block: for i = 0 ... batch * fours(size) - 1.
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
  MODEL_BOTH static constexpr std::size_t fours(std::size_t size) { return (size + 3) / 4; }
  MODEL_BOTH void operator()(std::size_t i) const {
    const std::size_t sample = i / fours(size), block = i % fours(size);
    ddp::PhiloxWords random{};
    if (settings->threshold > 0)
      random =
          ddp::philox({static_cast<std::uint32_t>(block), ddp::stream_dropout + layer, samples[sample], settings->step},
                      settings->seed);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t unit = 4 * block + j, at = sample * size + unit;
      if (unit >= size) return;
      T value = sums[at] + bias[unit];
      if (relu) value = value < T(0) ? T(0) : value;  // a NaN stays one
      if (settings->threshold > 0) value = random[j] < settings->threshold ? T(0) : value * settings->kept_scale;
      units[at] = static_cast<U>(value);
    }
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

// Sgd of optimizer.hpp without weight decay, for one element. `copy`: of the parameter, for the next step's products;
// or null.
template <class T, class U>
struct Descend {
  T* parameter;
  T* velocity;
  const T* gradient;
  U* copy;
  T momentum;
  const StepSettings<T>* settings;
  MODEL_BOTH void operator()(std::size_t i) const {
    velocity[i] = or_zero(momentum * velocity[i] + gradient[i]);
    parameter[i] -= settings->learning_rate * velocity[i];
    if (copy) copy[i] = static_cast<U>(parameter[i]);
  }
};

// Adam of optimizer.hpp: first, for one element, what all parameters need in a step.
template <class T>
struct CountAdamStep {
  double* steps;
  AdamFactors<T>* factors;
  const StepSettings<T>* settings;
  MODEL_BOTH void operator()(std::size_t) const {
    *steps += 1;
    *factors = adam_factors<T>(*steps, static_cast<double>(settings->learning_rate));
  }
};
template <class T, class U>
struct DescendByAdam {
  T* parameter;
  T* mean;
  T* square;
  const T* gradient;
  U* copy;
  const AdamFactors<T>* factors;
  MODEL_BOTH void operator()(std::size_t i) const {
    parameter[i] -= adam_change(mean[i], square[i], gradient[i], *factors);
    if (copy) copy[i] = static_cast<U>(parameter[i]);
  }
};

// The optimizers' state on a device. state(): as that of the optimizer of the same name in optimizer.hpp, so that a
// training can continue elsewhere.
template <class T, class Device>
struct SgdOn {
  explicit SgdOn(const std::vector<ddp::NamedBlock>& parameters, double momentum = 0)
      : flat(parameters), momentum(static_cast<T>(momentum)), velocity(flat.size()) {}
  std::vector<ddp::NamedBlock> state() { return flat.blocks(velocity.span(), "velocity of "); }

  Flat<T> flat;
  T momentum;
  typename Device::template Buffer<T> velocity;
};

template <class T, class Device>
struct AdamOn {
  explicit AdamOn(const std::vector<ddp::NamedBlock>& parameters)
      : flat(parameters), steps(1), factors(1), mean(flat.size()), square(flat.size()) {}
  std::vector<ddp::NamedBlock> state() {
    std::vector<ddp::NamedBlock> state{{"steps", {1}, steps.span()}};
    for (const auto& block : flat.blocks(mean.span(), "mean of ")) state.push_back(block);
    for (const auto& block : flat.blocks(square.span(), "mean of squares of ")) state.push_back(block);
    return state;
  }

  Flat<T> flat;
  typename Device::template Buffer<double> steps;  // one
  typename Device::template Buffer<AdamFactors<T>> factors;
  typename Device::template Buffer<T> mean, square;
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
  using value_type = T;
  using product_type = U;
  using Sgd = SgdOn<T, Device>;
  using Adam = AdamOn<T, Device>;

  // For batches of `capacity` samples at most. Throws as Perceptron does.
  PerceptronOn(Architecture architecture, std::size_t capacity);

  std::vector<ddp::NamedBlock> parameters() { return flat_.blocks(parameters_.span()); }
  std::span<T> parameter(std::size_t i) { return flat_.part(parameters_.span(), i); }
  std::span<T> gradient(std::size_t i) const { return flat_.part(gradients_, i); }
  std::span<T> gradient_storage() { return gradient_storage_.span(); }

  // Throws std::logic_error if they do not lie as in gradient_storage(), in memory of its size.
  void set_gradients(const std::vector<std::span<T>>& gradients) {
    const std::span<T> all(gradients.back().data(), flat_.size());
    for (std::size_t i = 0; i < 2 * layers(); ++i)
      if (gradients.at(i).data() != flat_.part(all, i).data() || gradients[i].size() != flat_.part(all, i).size())
        throw std::logic_error("Perceptron: gradients that do not lie as those of a device do");
    gradients_ = all;
  }

  void parameters_changed();  // from outside: call it, or products use the old ones

  // Of the batch that was loaded. Adds to the totals.
  void forward();
  // As Perceptron::backward().
  void backward(const std::function<void(std::size_t)>& ready, bool add = false);
  void update(Sgd& sgd);
  void update(Adam& adam);

 private:
  std::size_t layers() const { return architecture_.sizes.size() - 1; }
  U* copy() { return copies ? copies_.data() : nullptr; }
  const U* ones() { return ones_.data(); }
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

 protected:
  bool by_label() const { return architecture_.loss == Loss::cross_entropy; }

  Architecture architecture_;
  Device device_;
  Flat<T> flat_;
  Buffer<T> parameters_;
  std::span<T> gradients_;

 private:
  Buffer<U> copies_;  // of the parameters, as U
  Buffer<T> gradient_storage_;
  Buffer<U> ones_;     // capacity
  Buffers<U> units_;   // of hidden layers, and the inputs as U: capacity x size
  Buffers<U> errors_;  // derivative of the loss by the sums of each layer but the inputs: capacity x size
  Buffer<T> sums_;     // of one layer at a time: capacity x the widest layer
  Buffer<T> losses_;   // of each sample
  Buffer<std::uint8_t> rights_;

 protected:
  // The batch that forward() works on: capacity x features, capacity x outputs or labels, and the samples' numbers.
  std::size_t batch_ = 0;
  Buffer<T> inputs_, targets_;
  Buffer<std::uint8_t> labels_;
  Buffer<std::uint32_t> samples_;
  Buffer<StepSettings<T>> settings_;  // one
  Buffer<Totals> totals_;             // one
};

template <class T, class U, class Device>
PerceptronOn<T, U, Device>::PerceptronOn(Architecture architecture, std::size_t capacity)
    : architecture_(std::move(architecture)),
      device_(architecture_.tf32),
      flat_(Perceptron<T>(architecture_, 0).parameters()),
      parameters_(flat_.size()),
      copies_(copies ? flat_.size() : 1),
      gradient_storage_(flat_.size()),
      ones_(capacity),
      sums_(capacity * *std::max_element(architecture_.sizes.begin() + 1, architecture_.sizes.end())),
      losses_(capacity),
      rights_(capacity),
      inputs_(capacity * architecture_.sizes.front()),
      targets_(by_label() ? 1 : capacity * architecture_.sizes.back()),
      labels_(by_label() ? capacity : 1),
      samples_(capacity),
      settings_(1),
      totals_(1) {
  device_.each(capacity, Fill<U>{ones_.data(), static_cast<U>(1.0f)});
  for (std::size_t l = 0; l < architecture_.sizes.size(); ++l) {
    const std::size_t count = capacity * architecture_.sizes[l];
    const bool kept = l == 0 ? copies : l < layers();
    units_.push_back(kept ? std::make_unique<Buffer<U>>(count) : nullptr);
    errors_.push_back(l > 0 ? std::make_unique<Buffer<U>>(count) : nullptr);
  }
}

template <class T, class U, class Device>
void PerceptronOn<T, U, Device>::parameters_changed() {
  if constexpr (copies) device_.each(flat_.size(), Convert<T, U>{parameters_.data(), copies_.data()});
}

template <class T, class U, class Device>
void PerceptronOn<T, U, Device>::forward() {
  if constexpr (copies) device_.each(batch_ * architecture_.sizes[0], Convert<T, U>{inputs_.data(), units_[0]->data()});
  for (std::size_t l = 1; l <= layers(); ++l) {
    const std::size_t n = architecture_.sizes[l];
    const T* const bias = parameter(2 * l - 1).data();
    device_.product(Transpose::second, batch_, n, architecture_.sizes[l - 1], units(l - 1), weights(l), T(0),
                    sums_.data());
    if (l < layers())
      device_.each(batch_ * FinishHidden<T, U>::fours(n),
                   FinishHidden<T, U>{sums_.data(), bias, units_[l]->data(), n, architecture_.hidden_relu,
                                      samples_.data(), static_cast<std::uint32_t>(l), settings_.data()});
    else
      device_.rows(batch_, FinishOutputs<T, U>{architecture_.loss, architecture_.output_relu, n, sums_.data(), bias,
                                               targets_.data(), labels_.data(), errors_[l]->data(), losses_.data(),
                                               rights_.data()});
  }
  if (batch_ > 0) device_.rows(1, AddUp<T>{batch_, losses_.data(), rights_.data(), settings_.data(), totals_.data()});
}

template <class T, class U, class Device>
void PerceptronOn<T, U, Device>::backward(const std::function<void(std::size_t)>& ready, bool add) {
  for (std::size_t l = layers(); l >= 1; --l) {
    const std::size_t n = architecture_.sizes[l], below = architecture_.sizes[l - 1];
    const U* const errors = errors_[l]->data();
    const T keep = add ? T(1) : T(0);
    // The sums of the columns, as a product: cuBLAS reads the rows of errors from the first to the last byte.
    device_.product(Transpose::none, 1, n, batch_, ones(), errors, keep, gradient(2 * l - 1).data());
    ready(2 * l - 1);
    device_.product(Transpose::first, n, below, batch_, errors, units(l - 1), keep, gradient(2 * l - 2).data());
    ready(2 * l - 2);
    if (l == 1) break;
    device_.product(Transpose::none, batch_, below, n, errors, weights(l), T(0), sums_.data());
    device_.each(batch_ * below, ThroughHidden<T, U>{sums_.data(), units_[l - 1]->data(), errors_[l - 1]->data(),
                                                     architecture_.hidden_relu, settings_.data()});
  }
}

template <class T, class U, class Device>
void PerceptronOn<T, U, Device>::update(Sgd& sgd) {
  device_.each(flat_.size(), Descend<T, U>{parameters_.data(), sgd.velocity.data(), gradients_.data(), copy(),
                                           sgd.momentum, settings_.data()});
}

template <class T, class U, class Device>
void PerceptronOn<T, U, Device>::update(Adam& adam) {
  device_.each(1, CountAdamStep<T>{adam.steps.data(), adam.factors.data(), settings_.data()});
  device_.each(flat_.size(), DescendByAdam<T, U>{parameters_.data(), adam.mean.data(), adam.square.data(),
                                                 gradients_.data(), copy(), adam.factors.data()});
}

}  // namespace model
