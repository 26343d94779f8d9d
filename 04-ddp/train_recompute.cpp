// Activation checkpointing, also called recomputation: the forward pass keeps the inputs of every k-th layer only, and
// the backward pass computes those between them again. Less memory for more forward passes, and the same gradients.
//
//   g++ -std=c++20 -O2 train_recompute.cpp -o train_recompute
//   ./train_recompute
//
// Exit status: 0 if the gradients are the same to the last bit, with as many activations as the formula says; 1 if not.
// After: train_single.cpp. New: an allocator that counts bytes, as in train_sharded.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

constexpr std::size_t layers = 16, width = 128, samples = 100;
constexpr std::size_t in_one = samples * width * sizeof(float);  // bytes of one layer's inputs

float random(std::uint64_t stream, std::uint64_t index) {  // in -1 ... 1
  std::uint64_t x = (stream << 32 | index) * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return std::ldexp(float((x ^ x >> 31) >> 40), -23) - 1;
}

// Counts the bytes of the activations, and the most that there were.
struct Memory {
  static inline std::size_t now = 0, most = 0;
};
template <class T>
struct Counted : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Counted<U>;
  };
  T* allocate(std::size_t n) {
    Memory::most = std::max(Memory::most, Memory::now += n * sizeof(T));
    return std::allocator<T>::allocate(n);
  }
  void deallocate(T* memory, std::size_t n) {
    Memory::now -= n * sizeof(T);
    std::allocator<T>::deallocate(memory, n);
  }
};
using Activations = std::vector<float, Counted<float>>;
using Parameters = std::vector<std::vector<float>>;  // of each layer

struct Network {
  Parameters weights{layers}, gradients{layers};
  std::size_t every, computed = 0;             // layers, forward
  std::array<Activations, layers + 1> inputs;  // of each layer; empty, if they are not kept

  explicit Network(std::size_t keep_every) : every(keep_every) {
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (std::size_t i = 0; i < width * width; ++i)
        weights[layer].push_back(std::sqrt(6 / float(width)) * random(layer, i));
  }

  void compute(std::size_t layer) {  // the inputs of the layer after it
    ++computed;
    Activations& y = inputs[layer + 1];
    y.assign(samples * width, 0);
    for (std::size_t k = 0; k < samples * width; ++k)
      for (std::size_t o = 0; o < width; ++o)
        y[k / width * width + o] += inputs[layer][k] * weights[layer][k % width * width + o];
    for (float& value : y) value = std::max(value, 0.0F);
  }

  void forward() {
    inputs[0].resize(samples * width);
    for (std::size_t k = 0; k < samples * width; ++k) inputs[0][k] = random(1000, k);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      compute(layer);
      if (layer % every != 0) inputs[layer] = Activations();
    }
  }

  void backward() {  // of half the sum of the squares of the outputs
    std::vector<float> d(inputs[layers].begin(), inputs[layers].end());
    inputs[layers] = Activations();
    for (std::size_t layer = layers; layer-- > 0;) {
      if (inputs[layer].empty())
        for (std::size_t again = layer / every * every; again < layer; ++again) compute(again);
      gradients[layer].assign(width * width, 0);
      std::vector<float> before(samples * width);
      for (std::size_t k = 0; k < samples * width; ++k)
        for (std::size_t o = 0; o < width; ++o) {
          gradients[layer][k % width * width + o] += inputs[layer][k] * d[k / width * width + o];
          if (inputs[layer][k] > 0) before[k] += weights[layer][k % width * width + o] * d[k / width * width + o];
        }
      d = before;
      inputs[layer] = Activations();
    }
  }
};

int main() {
  Parameters wanted;
  bool right = true;
  std::printf("keeps every  layers computed  activations  gradients\n");
  for (const std::size_t every : {1, 2, 4, 8, 16}) {
    Network network(every);
    Memory::most = Memory::now;
    network.forward();
    network.backward();
    if (every == 1) wanted = network.gradients;
    const bool same = network.gradients == wanted;
    // What is kept, and what one part has computed again; in the forward pass, a layer's inputs and outputs.
    right = right && same && network.computed == 2 * layers - layers / every &&
            Memory::most == in_one * std::max(layers / every + every - 1, layers / every + (every > 1) + 1);
    std::printf("%11zu %16zu %8zu KiB  %s\n", every, network.computed, Memory::most / 1024,
                same ? "the same" : "differ");
  }
  std::printf("%s: the same gradients to the last bit\n", right ? "RIGHT" : "WRONG");
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_recompute: standard output"), 1;
  return right ? 0 : 1;
}
