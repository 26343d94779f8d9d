// train_single.cpp on all ranks: each has a part of the batch, and one MPI_Allreduce per parameter adds up the
// gradients.
//
//   mpicxx -std=c++20 -O2 train_all_reduce.cpp -o train_all_reduce
//   mpirun -n 2 ./train_all_reduce [BATCH]
//
// Exit status: 0 if the network has learned, and each rank has the parameters of train_single, but for rounding; 1 if
// not.
// After: train_single.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

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
// Rounding changes parameters by 1e-7, and by 2e-4 where it decides whether a unit is above 0. Of 100 samples, one that
// is left out in each step changes them by 5e-3.
constexpr float tolerance = 1e-3F;
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
  std::size_t batch;                                 // samples per step, of all ranks
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
std::pair<double, double> train(Network& network, MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  for (Parameter& parameter : network.parameters)  // all ranks start from rank 0's parameters
    MPI_Bcast(parameter.value.data(), int(parameter.value.size()), MPI_FLOAT, 0, comm);
  const std::size_t batch = network.batch;
  double loss = 0;
  std::vector<double> times;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    MPI_Pcontrol(1, "forward");  // a region of the timeline; without a tool, MPI_Pcontrol does nothing
    const double sum = network.forward(step * batch + batch * std::size_t(rank) / std::size_t(size),
                                       step * batch + batch * std::size_t(rank + 1) / std::size_t(size));
    MPI_Pcontrol(-1, "forward");
    MPI_Pcontrol(1, "backward");
    network.backward();
    MPI_Pcontrol(-1, "backward");
    for (Parameter& parameter : network.parameters)
      MPI_Allreduce(MPI_IN_PLACE, parameter.gradient.data(), int(parameter.gradient.size()), MPI_FLOAT, MPI_SUM, comm);
    MPI_Pcontrol(1, "update");
    network.update();
    MPI_Pcontrol(-1, "update");
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    if (step + 10 >= steps) loss += sum / double(10 * batch);
  }
  MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, comm);
  std::ranges::nth_element(times, times.begin() + steps / 2);
  return {loss, times[steps / 2]};
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, different = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::size_t batch = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100;
  if (batch < 1 || batch > 1600) {
    if (rank == 0) std::fprintf(stderr, "train_all_reduce: batch must be a number from 1 to 1600, not '%s'\n", argv[1]);
    return MPI_Finalize(), 1;
  }
  Network network(std::uint64_t(rank), batch), alone(0, batch);
  const auto [loss, median] = train(network, MPI_COMM_WORLD);
  if (rank == 0) train(alone, MPI_COMM_SELF);  // one process with the whole batch
  for (std::size_t p = 0; p < alone.parameters.size(); ++p) {
    MPI_Bcast(alone.parameters[p].value.data(), int(alone.parameters[p].value.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
    for (std::size_t i = 0; i < alone.parameters[p].value.size(); ++i)
      different += !(std::abs(network.parameters[p].value[i] - alone.parameters[p].value[i]) < tolerance);
  }
  MPI_Allreduce(MPI_IN_PLACE, &different, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  const bool right = loss < 0.5 && different == 0;  // a guess has log 8 = 2.08
  if (rank == 0) {
    std::printf("median step: %.3f ms\n", median);
    std::printf("%s: loss %.4f, %d parameters differ from one process by more than %g\n", right ? "RIGHT" : "WRONG",
                loss, different, tolerance);
  }
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_all_reduce: standard output"), 1;
  return right ? 0 : 1;
}
