// optimizer.hpp: how gradients move parameters, on the Device of perceptron.hpp. All ranks make the same updates of the
// same parameters with the same gradients, so that their parameters stay the same, bit for bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../ddp/parameters.hpp"
#include "operations.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace model {

// Where parameters, their gradients and an optimizer's state lie in one piece of memory, so that one pass updates all
// of them: as the reducer lays out gradients, the last parameter first, each at a multiple of ddp::device_alignment
// bytes.
template <class T>
class Flat {
 public:
  explicit Flat(std::vector<ddp::NamedBlock> parameters) : blocks_(std::move(parameters)), offsets_(blocks_.size()) {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      offsets_[i] = size_;
      size_ += ddp::padded(blocks_[i].block.count, sizeof(T), ddp::device_alignment);
    }
  }
  std::size_t size() const { return size_; }  // elements, with those between the parameters
  std::size_t count() const { return blocks_.size(); }
  std::size_t offset(std::size_t i) const { return offsets_.at(i); }
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

// Stochastic gradient descent: velocity = momentum velocity + gradient + weight_decay parameter;
// parameter -= learning_rate velocity.
template <class T>
struct Descend {
  T* parameter;
  T* velocity;
  const T* gradient;
  T momentum, weight_decay, rate;
  MODEL_BOTH void operator()(std::size_t i) const {
    T change = gradient[i] + weight_decay * parameter[i];
    if (momentum != 0) change = velocity[i] = or_zero(momentum * velocity[i] + change);
    parameter[i] -= rate * change;
  }
};

// Adam: first, for one element, what all parameters need in a step.
template <class T>
struct CountAdamStep {
  double* steps;
  AdamFactors<T>* factors;
  double learning_rate;
  MODEL_BOTH void operator()(std::size_t) const {
    *steps += 1;
    *factors = adam_factors<T>(*steps, learning_rate);
  }
};
template <class T>
struct DescendByAdam {
  T* parameter;
  T* mean;
  T* square;
  const T* gradient;
  const AdamFactors<T>* factors;
  MODEL_BOTH void operator()(std::size_t i) const {
    parameter[i] -= adam_change(mean[i], square[i], gradient[i], *factors);
  }
};

// An optimizer has
//   state()                         what a checkpoint must hold beside the parameters
//   begin_step(device, settings)    before the first operation of a step
//   operation(first, ...)           what Device::each() does with the elements from `first` on of Flat's memory: moves
//                                   `parameter` by `gradient`
template <class T, class Device>
class SgdOn {
 public:
  explicit SgdOn(const std::vector<ddp::NamedBlock>& parameters, double momentum = 0, double weight_decay = 0)
      : flat_(parameters),
        momentum_(static_cast<T>(momentum)),
        weight_decay_(static_cast<T>(weight_decay)),
        velocity_(flat_.size()) {}
  const Flat<T>& flat() const { return flat_; }
  std::vector<ddp::NamedBlock> state() { return flat_.blocks(velocity_.span(), "velocity of "); }
  void begin_step(Device&, const StepSettings<T>&) {}
  Descend<T> operation(std::size_t first, T* parameter, const T* gradient, const StepSettings<T>& settings) {
    return {parameter,     velocity_.data() + first,
            gradient,      momentum_,
            weight_decay_, static_cast<T>(settings.learning_rate)};
  }

 private:
  Flat<T> flat_;
  T momentum_, weight_decay_;
  typename Device::template Buffer<T> velocity_;
};

// Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1, with its defaults.
template <class T, class Device>
class AdamOn {
 public:
  explicit AdamOn(const std::vector<ddp::NamedBlock>& parameters)
      : flat_(parameters), steps_(1), factors_(1), mean_(flat_.size()), square_(flat_.size()) {}
  const Flat<T>& flat() const { return flat_; }
  std::vector<ddp::NamedBlock> state() {
    std::vector<ddp::NamedBlock> state{{"steps", {1}, steps_.span()}};
    for (const auto& block : flat_.blocks(mean_.span(), "mean of ")) state.push_back(block);
    for (const auto& block : flat_.blocks(square_.span(), "mean of squares of ")) state.push_back(block);
    return state;
  }
  void begin_step(Device& device, const StepSettings<T>& settings) {
    device.each(1, CountAdamStep<T>{steps_.data(), factors_.data(), settings.learning_rate});
  }
  DescendByAdam<T> operation(std::size_t first, T* parameter, const T* gradient, const StepSettings<T>&) {
    return {parameter, mean_.data() + first, square_.data() + first, gradient, factors_.data()};
  }

 private:
  Flat<T> flat_;
  typename Device::template Buffer<double> steps_;  // one
  typename Device::template Buffer<AdamFactors<T>> factors_;
  typename Device::template Buffer<T> mean_, square_;
};

// Moves parameter number i alone, which lies anywhere. For host memory.
template <class T, class Device, class Optimizer>
void update_parameter(Device& device, Optimizer& optimizer, std::size_t i, std::span<T> parameter, const T* gradient,
                      const StepSettings<T>& settings) {
  device.each(parameter.size(), optimizer.operation(optimizer.flat().offset(i), parameter.data(), gradient, settings));
}

}  // namespace model
