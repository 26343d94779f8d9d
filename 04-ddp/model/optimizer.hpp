// optimizer.hpp: how gradients move parameters.
#pragma once

#include "../ddp/parameters.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace model {

// One model's optimizer, on the CPU. All ranks make the same updates of the same parameters with the same gradients, so
// that their parameters stay the same, bit for bit.
template <class T>  // float, double
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual void begin_step() {}  // called before the first update() of a step

  // Moves elements `first` ... of parameter number i by as many of its gradient.
  virtual void update(std::size_t i, std::size_t first, std::span<T> parameter, std::span<const T> gradient,
                      double learning_rate) = 0;

  // What a checkpoint must hold beside the parameters.
  virtual std::vector<ddp::NamedBlock> state() = 0;
  // The blocks of it that have one element per element of parameter number i, in host memory.
  virtual std::vector<std::span<T>> state_of(std::size_t) { return {}; }
};

// Stochastic gradient descent: velocity = momentum velocity + gradient + weight_decay parameter;
// parameter -= learning_rate velocity.
template <class T>
class Sgd : public Optimizer<T> {
 public:
  explicit Sgd(std::vector<ddp::NamedBlock> parameters, double momentum = 0, double weight_decay = 0);
  void update(std::size_t i, std::size_t first, std::span<T> parameter, std::span<const T> gradient,
              double learning_rate) override;
  std::vector<ddp::NamedBlock> state() override;
  std::vector<std::span<T>> state_of(std::size_t i) override { return {velocity_.at(i)}; }

 private:
  std::vector<ddp::NamedBlock> parameters_;
  T momentum_, weight_decay_;
  std::vector<std::vector<T>> velocity_;
};

// Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1, with its defaults.
template <class T>
class Adam : public Optimizer<T> {
 public:
  explicit Adam(std::vector<ddp::NamedBlock> parameters);
  void begin_step() override { ++steps_[0]; }
  void update(std::size_t i, std::size_t first, std::span<T> parameter, std::span<const T> gradient,
              double learning_rate) override;
  std::vector<ddp::NamedBlock> state() override;
  std::vector<std::span<T>> state_of(std::size_t i) override { return {mean_.at(i), square_.at(i)}; }

 private:
  std::vector<ddp::NamedBlock> parameters_;
  std::array<double, 1> steps_{};
  std::vector<std::vector<T>> mean_, square_;
};

}  // namespace model
