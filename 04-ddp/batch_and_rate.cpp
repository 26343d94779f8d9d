// How does the learning rate follow the number of ranks? Each rank brings its own batch, so N ranks make steps that are
// N times as large, and as few: the training of one process with N times the batch, which is what this program runs.
//
//   g++ -std=c++20 -O2 batch_and_rate.cpp -o batch_and_rate
//   ./batch_and_rate
//
// Exit status: 0 if the losses show what the lesson says: an unchanged rate learns too little, a scaled one as much as
// one rank does, up to a limit, and a warm-up moves that limit; 1 if not. After: train_all_reduce.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <vector>

constexpr std::size_t layers = 7, width = 64, classes = 8, batch_of_a_rank = 16, samples = 8192;
constexpr std::size_t outputs(std::size_t layer) { return layer + 1 < layers ? width : classes; }
constexpr float base_rate = 0.02F;

// Random, in -1 ... 1, and a function of its arguments alone: the same in all trainings.
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

// Returns the mean loss of the last eighth of the samples. The rate grows from 0 until `warm_up` samples are read.
double train(std::size_t batch, float rate, std::size_t warm_up) {
  std::array<std::vector<float>, layers> weights;
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (std::size_t i = 0; i < width * outputs(layer); ++i)
      weights[layer].push_back(std::sqrt(6 / float(width)) * random(layer, i));
  double loss = 0;
  for (std::size_t first = 0; first < samples; first += batch) {
    std::array<std::vector<float>, layers + 1> units;
    for (std::size_t k = 0; k < batch * width; ++k) units[0].push_back(input(first + k / width, k % width));
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t out = outputs(layer);
      units[layer + 1].resize(batch * out);
      for (std::size_t k = 0; k < batch * width; ++k)
        for (std::size_t o = 0; o < out; ++o)
          units[layer + 1][k / width * out + o] += units[layer][k] * weights[layer][k % width * out + o];
      for (float& unit : units[layer + 1]) unit = layer + 1 < layers ? std::max(unit, 0.0F) : unit;
    }
    std::vector<float> d = units[layers];
    for (std::size_t s = 0; s < batch; ++s) {
      float* scores = &d[s * classes];  // become the derivative of the loss by them
      const float largest = *std::max_element(scores, scores + classes);
      double all = 0;
      for (std::size_t c = 0; c < classes; ++c) all += std::exp(double(scores[c] - largest));
      const std::size_t answer = class_of(first + s);
      if (first + s >= samples / 8 * 7) loss += (std::log(all) - double(scores[answer] - largest)) / (samples / 8);
      for (std::size_t c = 0; c < classes; ++c)
        scores[c] = float(std::exp(double(scores[c] - largest)) / all) - float(c == answer);
    }
    const float now = rate * std::min(1.0F, float(first + batch) / float(warm_up + 1));
    for (std::size_t layer = layers; layer-- > 0;) {
      const std::size_t out = outputs(layer);
      std::vector<float> gradients(weights[layer].size()), before(batch * width);
      for (std::size_t k = 0; k < batch * width; ++k)
        for (std::size_t o = 0; o < out; ++o) {
          gradients[k % width * out + o] += units[layer][k] * d[k / width * out + o];
          if (units[layer][k] > 0) before[k] += weights[layer][k % width * out + o] * d[k / width * out + o];
        }
      for (std::size_t i = 0; i < gradients.size(); ++i) weights[layer][i] -= now * gradients[i] / float(batch);
      d = before;
    }
  }
  return loss;
}

int main() {
  struct Losses {
    double unchanged, scaled, warmed_up;
  };
  std::map<std::size_t, Losses> of;
  std::printf("ranks  batch  steps  rate unchanged  rate times ranks  and a warm-up\n");
  for (const std::size_t ranks : {1, 2, 4, 8, 16, 32}) {
    const std::size_t batch = batch_of_a_rank * ranks;
    const float scaled = base_rate * float(ranks);
    of[ranks] = {train(batch, base_rate, 0), train(batch, scaled, 0), train(batch, scaled, samples / 4)};
    std::printf("%5zu %6zu %6zu %15.3f %17.3f %14.3f\n", ranks, batch, samples / batch, of[ranks].unchanged,
                of[ranks].scaled, of[ranks].warmed_up);
  }
  const double one = of[1].unchanged;
  const bool right = one < 0.05 && of[8].unchanged > 10 * one && of[8].scaled < 2 * one && of[8].warmed_up < 2 * one &&
                     of[32].scaled > 1 && of[32].warmed_up < of[32].scaled / 2;
  std::printf("%s: a guess has %.3f\n", right ? "RIGHT" : "WRONG", std::log(double(classes)));
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("batch_and_rate: standard output"), 1;
  return right ? 0 : 1;
}
