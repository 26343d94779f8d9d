// One process trains a small network: forward pass, backward pass, update. train_all_reduce.cpp does it on all ranks.
//
//   g++ -std=c++20 -O2 train_single.cpp -o train_single
//   ./train_single [BATCH]
//
// Exit status: 0 if the network has learned, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

constexpr std::size_t layers = 7, inputs = 64, hidden = 128, classes = 8, steps = 30;
constexpr float learning_rate = 0.05F;
constexpr std::size_t width(std::size_t layer) { return layer == 0 ? inputs : layer == layers ? classes : hidden; }

// Random, in -1 ... 1, and a function of its arguments alone: the same on every rank, whatever was drawn before.
float random(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t x = (stream << 32 | index) * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return std::ldexp(float((x ^ x >> 31) >> 40), -23) - 1;
}

// The data: an endless set of noisy copies of eight patterns. The network learns which pattern a sample is made of.
std::size_t class_of(std::size_t sample) { return std::size_t(4 + 4 * random(999, sample)); }
float input(std::size_t sample, std::size_t i) {
  return random(1000 + class_of(sample), i) + random(999, (sample + 1) * 1000 + i);
}

struct Parameter {
  std::vector<float> value, gradient;
};

struct Network {
  std::size_t batch;                                 // samples per step
  std::vector<Parameter> parameters;                 // weights and biases of layer 0, of layer 1, ...
  std::array<std::vector<float>, layers + 1> units;  // units[layer] has the layer's inputs, sample after sample
  std::vector<float> delta;                          // the derivative of the loss by the outputs of the layer at work

  Network(std::uint64_t seed, std::size_t samples) : batch(samples) {
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (const std::size_t size : {width(layer) * width(layer + 1), width(layer + 1)})
        parameters.push_back({std::vector<float>(size), std::vector<float>(size)});
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (std::uint64_t i = 0; float& weight : parameters[2 * layer].value)
        weight = std::sqrt(6 / float(width(layer))) * random(seed * layers + layer, i++);
  }

  // Of samples first ... last - 1: returns the sum of their cross-entropy losses.
  double forward(std::size_t first, std::size_t last) {
    const std::size_t samples = last - first;
    units[0].resize(samples * inputs);
    for (std::size_t s = 0; s < samples; ++s)
      for (std::size_t i = 0; i < inputs; ++i) units[0][s * inputs + i] = input(first + s, i);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t in = width(layer), out = width(layer + 1);
      units[layer + 1].resize(samples * out);
      for (std::size_t s = 0; s < samples; ++s) {
        float* y = &units[layer + 1][s * out];
        std::ranges::copy(parameters[2 * layer + 1].value, y);
        for (std::size_t i = 0; i < in; ++i)
          for (std::size_t o = 0; o < out; ++o)
            y[o] += units[layer][s * in + i] * parameters[2 * layer].value[i * out + o];
        for (std::size_t o = 0; o < out && layer + 1 < layers; ++o) y[o] = std::max(y[o], 0.0F);
      }
    }
    double loss = 0;
    delta = units[layers];
    for (std::size_t s = 0; s < samples; ++s) {
      std::array<float, classes> powers{};
      float all = 0;
      for (std::size_t c = 0; c < classes; ++c) all += powers[c] = std::exp(units[layers][s * classes + c]);
      const std::size_t answer = class_of(first + s);
      for (std::size_t c = 0; c < classes; ++c) delta[s * classes + c] = powers[c] / all - float(c == answer);
      loss -= std::log(powers[answer] / all);
    }
    return loss;
  }

  // The gradient of each parameter: the sum over the samples of the forward pass. The last layer comes first.
  void backward() {
    const std::size_t samples = delta.size() / classes;
    for (std::size_t layer = layers; layer-- > 0;) {
      const std::size_t in = width(layer), out = width(layer + 1);
      Parameter &weights = parameters[2 * layer], &biases = parameters[2 * layer + 1];
      std::ranges::fill(weights.gradient, 0.0F);
      std::ranges::fill(biases.gradient, 0.0F);
      std::vector<float> before(layer > 0 ? samples * in : 0);
      for (std::size_t s = 0; s < samples; ++s) {
        const float *x = &units[layer][s * in], *d = &delta[s * out];
        for (std::size_t o = 0; o < out; ++o) biases.gradient[o] += d[o];
        for (std::size_t i = 0; i < in; ++i)
          for (std::size_t o = 0; o < out; ++o) weights.gradient[i * out + o] += x[i] * d[o];
        for (std::size_t i = 0; i < in && layer > 0; ++i) {  // no parameter needs the derivative by the inputs
          float sum = 0;
          for (std::size_t o = 0; o < out; ++o) sum += weights.value[i * out + o] * d[o];
          before[s * in + i] = x[i] > 0 ? sum : 0;  // the derivative of the ReLU
        }
      }
      delta = std::move(before);
    }
  }

  void update() {
    for (Parameter& parameter : parameters)
      for (std::size_t i = 0; i < parameter.value.size(); ++i)
        parameter.value[i] -= learning_rate * (parameter.gradient[i] / float(batch));
  }
};

// Returns the mean loss of the last 10 steps, and the median time of a step in milliseconds.
std::pair<double, double> train(Network& network) {
  const std::size_t batch = network.batch;
  double loss = 0;
  std::vector<double> times;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const double sum = network.forward(step * batch, (step + 1) * batch);
    network.backward();
    network.update();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    if (step + 10 >= steps) loss += sum / double(10 * batch);
  }
  std::ranges::nth_element(times, times.begin() + steps / 2);
  return {loss, times[steps / 2]};
}

int main(int argc, char** argv) {
  const std::size_t batch = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100;
  if (batch < 1 || batch > 1600)
    return std::fprintf(stderr, "train_single: batch must be a number from 1 to 1600, not '%s'\n", argv[1]), 1;
  Network network(0, batch);
  const auto [loss, median] = train(network);
  const bool right = loss < 0.5;  // a guess has log 8 = 2.08
  std::printf("median step: %.3f ms\n", median);
  std::printf("%s: loss %.4f\n", right ? "RIGHT" : "WRONG", loss);
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_single: standard output"), 1;
  return right ? 0 : 1;
}
