// perceptron.hpp: a multilayer perceptron and its gradients, on the CPU's BLAS.
#pragma once

#include "../data/batch.hpp"
#include "../ddp/parameters.hpp"
#include "../ddp/sampler.hpp"
#include "optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace model {

// Of a sample with outputs z and targets t, or label c.
enum class Loss {
  cross_entropy,         // -log softmax(z)[c]
  binary_cross_entropy,  // sum of -t log s - (1 - t) log(1 - s), s = 1 / (1 + exp(-z))
  mean_square,           // mean of (z - t)^2
};

// Layers of sizes[0] - sizes[1] - ... - sizes.back() units, each linear; hidden ones then have ReLU, unless told not
// to, and dropout. Parameters, in order: weights of layer 1 (units x inputs, row by row), its biases, weights of layer
// 2 ...
struct Architecture {
  std::vector<std::size_t> sizes;
  Loss loss = Loss::cross_entropy;
  bool hidden_relu = true;
  bool output_relu = false;
  bool tf32 = false;  // on a GPU: products of floats on tensor cores, which round the factors to 10 bits
};

// Of the forward pass. A unit is dropped or not by (seed, step, number of the sample in the data set, layer, unit)
// alone, so the masks do not depend on how a batch is shared out.
struct Dropout {
  double probability = 0;  // 0: none, as when the model is evaluated; below 1
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
};

struct Score {
  double loss = 0;  // sum over the samples
  // Samples whose largest output is the label's, or, with binary_cross_entropy, whose outputs are all on the target's
  // side of 0; not counted with mean_square.
  std::size_t right = 0;
};

// Of all forward passes since it was 0.
struct Totals {
  double loss = 0;
  std::uint64_t right = 0;
  std::uint32_t bad_step = 0;  // number, from 1, of the first step whose loss was not finite; 0: none
};

// "Keep the unit whose 32 random bits are not below this": exact to 2^-32, and the scale of the kept ones follows it.
std::uint32_t dropout_threshold(double probability);

// Throws std::logic_error for a batch that does not fit, and for dropout behind hidden layers without ReLU.
template <class T>  // float, double
void require_fit(const Architecture& architecture, std::size_t capacity, const data::Batch<T>& batch,
                 const Dropout& dropout);

template <class T>  // float, double
class Perceptron {
 public:
  using value_type = T;
  using Sgd = model::Sgd<T>;
  using Adam = model::Adam<T>;

  // For batches of `capacity` samples at most. Throws std::logic_error for sizes that make no network.
  Perceptron(Architecture architecture, std::size_t capacity);
  Perceptron(Perceptron&&) = default;  // a copy's gradients would be the original's

  const Architecture& architecture() const { return architecture_; }
  std::vector<ddp::NamedBlock> parameters();
  std::span<T> parameter(std::size_t i) { return parameters_.at(i); }
  std::span<T> gradient(std::size_t i) { return gradients_.at(i); }
  std::vector<T> copy_parameters() const { return joined(parameters_); }  // one behind the other
  std::vector<T> copy_gradients() const { return joined(gradients_); }

  // Uniform in +-1/sqrt(inputs), weights and biases; the same for the same seed.
  void initialize(std::uint64_t seed);

  // Where backward() puts the gradients: in room of the model's own, one behind the other, made by the first call of
  // gradient_storage(); or where the caller says.
  std::span<T> gradient_storage();
  void set_gradients(std::vector<std::span<T>> gradients);
  // Moves the parameters there.
  void set_parameters(std::vector<std::span<T>> parameters);

  // The batch stays as it is until backward() has returned. Throws as require_fit(). The learning rate is
  // PerceptronGpu's, which has it with the batch.
  Score forward(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate = 0);
  Score forward(const data::Batch<T>&& batch, const Dropout& dropout, double learning_rate = 0) = delete;

  // Of the last forward(): gradients of the SUM of its losses, from the last parameter to the first; ready(i) is called
  // as soon as gradient i is complete. `add`: to what is there. An empty batch gives gradients of 0.
  void backward(const std::function<void(std::size_t)>& ready, bool add = false);

  // Of every parameter, or of these elements of parameter 0, 1 ...
  void update(Optimizer<T>& optimizer, double learning_rate, std::span<const ddp::Range> parts = {});

  // As PerceptronGpu has them. take_totals(): of all forward passes since the last call; bad_step stays 0.
  Totals take_totals() { return std::exchange(totals_, {}); }
  void parameters_changed() {}

 private:
  std::size_t layers() const { return architecture_.sizes.size() - 1; }
  T* units(std::size_t layer) { return units_[layer].data(); }
  Score score(const data::Batch<T>& batch);
  std::vector<std::span<T>> lay_out(std::vector<T>& storage) const;
  static std::vector<T> joined(const std::vector<std::span<T>>& parts);

  Architecture architecture_;
  std::size_t capacity_;
  std::vector<std::size_t> counts_;  // elements of each parameter
  std::vector<T> parameter_storage_;
  std::vector<std::span<T>> parameters_;
  std::vector<T> gradient_storage_;
  std::vector<std::span<T>> gradients_;
  std::vector<std::vector<T>> units_;   // of each layer but the input: capacity x size
  std::vector<std::vector<T>> errors_;  // derivative of the loss by each layer's sums: capacity x size
  const T* inputs_ = nullptr;           // the last batch's
  std::size_t batch_ = 0;
  T kept_scale_ = 1;
  Totals totals_;
};

}  // namespace model
