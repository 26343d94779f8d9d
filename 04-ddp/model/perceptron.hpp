// perceptron.hpp: a multilayer perceptron for classification, its gradients, and SGD with momentum, on the CPU's BLAS.
#pragma once

#include "../data/fashion_mnist.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace model {

// Of the forward pass. A unit is dropped or not by (seed, step, number of the sample in the data set, layer, unit)
// alone, so the masks do not depend on how a batch is shared out.
struct Dropout {
  double probability = 0;  // 0: none, as when the model is evaluated; below 1
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
};

struct Score {
  double loss = 0;        // sum of the samples' cross-entropies
  std::size_t right = 0;  // samples whose largest output is the label's
};

// Elements of each parameter of a Perceptron.
std::vector<std::size_t> parameter_counts(std::span<const std::size_t> sizes);

// "Keep the unit whose 32 random bits are not below this": exact to 2^-32, and the scale of the kept ones follows it.
std::uint32_t dropout_threshold(double probability);

// Layers of sizes[0] - sizes[1] - ... - sizes.back() units: linear, then ReLU and dropout, but for the last, which is
// linear alone; softmax cross-entropy. Parameters, in order: weights of layer 1 (units x inputs, row by row), its
// biases, weights of layer 2 ...
template <class T>
class Perceptron {
 public:
  using value_type = T;

  // Batches of up to `capacity` samples.
  Perceptron(std::vector<std::size_t> sizes, std::size_t capacity);

  std::span<const std::size_t> counts() const { return counts_; }
  std::span<T> parameter(std::size_t i) { return parameters_.at(i); }
  std::vector<T> copy_parameters() const;

  // Uniform in +-1/sqrt(inputs), weights and biases; the same for the same seed.
  void initialize(std::uint64_t seed);

  // Room for all gradients, and where in it, as somebody else decides, backward() shall put each.
  std::span<T> gradient_storage() { return gradient_storage_; }
  void set_gradients(std::vector<std::span<T>> gradients);

  // pixels 0 ... 255 become inputs -1 ... 1.
  Score forward(const data::Batch& batch, const Dropout& dropout);

  // Of the last forward(): gradients of the SUM of its losses, from the last parameter to the first; ready(i) is called
  // as soon as gradient i is complete. An empty batch gives gradients of 0.
  void backward(const std::function<void(std::size_t)>& ready);

  // velocity = momentum velocity + gradient; parameter -= learning_rate velocity.
  void update(double learning_rate, double momentum);

 private:
  std::size_t layers() const { return sizes_.size() - 1; }

  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> counts_;
  std::vector<std::vector<T>> parameters_, velocity_;
  std::vector<T> gradient_storage_;
  std::vector<std::span<T>> gradients_;
  std::vector<std::vector<T>> units_;   // of each layer, the input first: capacity x size
  std::vector<std::vector<T>> errors_;  // derivative of the loss by each layer's sums: capacity x size
  std::size_t batch_ = 0;
  T kept_scale_ = 1;
};

}  // namespace model
