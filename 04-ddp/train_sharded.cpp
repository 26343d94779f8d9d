// train_all_reduce.cpp with sharded parameters, as PyTorch's FSDP and ZeRO stage 3 have them: each rank keeps one part
// of every layer's parameters and nothing else of them. A layer is gathered when it is needed, and dropped after that.
//
//   mpicxx -std=c++20 -O2 train_sharded.cpp -o train_sharded
//   mpirun -n 4 ./train_sharded [BATCH]
//
// Exit status: 0 if the network has learned, and the ranks' parts are the parameters of one process, to the last bit,
// in less memory; 1 if not.
// After: train_all_reduce.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
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

// To a multiple of 2^-12, by an addition that leaves float no finer bits. A float has 24 bits, so sums of such numbers
// are exact below 2^12 = 4096, whatever the order of the additions. Here a sum grows with the batch: to 48 with 100
// samples, and to 729 with 1600. Real trainings do without, and their last bits depend on the number of ranks.
float rounded(float x) { return (x + 3072) - 3072; }

// Counts the bytes of parameters and gradients that this process has, and the most that it had.
struct Memory {
  static inline std::size_t now = 0, most = 0;
  static void add(std::size_t bytes) { most = std::max(most, now += bytes); }
};
template <class T>
struct Counted : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Counted<U>;
  };
  T* allocate(std::size_t n) {
    Memory::add(n * sizeof(T));
    return std::allocator<T>::allocate(n);
  }
  void deallocate(T* memory, std::size_t n) {
    Memory::now -= n * sizeof(T);
    std::allocator<T>::deallocate(memory, n);
  }
};
using Floats = std::vector<float, Counted<float>>;

struct Network {
  MPI_Comm comm;
  std::size_t batch;  // samples per step, of all ranks
  int rank = 0, size = 0;
  std::array<Floats, layers> parts;                  // of each layer's weights and then biases, this rank's part
  std::array<std::vector<float>, layers + 1> units;  // units[layer] has the layer's inputs, sample after sample
  std::vector<float> delta;                          // the derivative of the loss by the outputs of the layer at work

  // Parameters of a layer, and zeros up to a multiple of the number of ranks.
  std::size_t count(std::size_t layer) const {
    const std::size_t ranks = std::size_t(size), all = (width(layer) + 1) * width(layer + 1);
    return (all + ranks - 1) / ranks * ranks;
  }

  Network(std::uint64_t seed, std::size_t samples, MPI_Comm communicator) : comm(communicator), batch(samples) {
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t length = count(layer) / std::size_t(size), first = length * std::size_t(rank);
      parts[layer].resize(length);
      for (std::size_t i = 0; i < length && first + i < width(layer) * width(layer + 1); ++i)
        parts[layer][i] = std::sqrt(6 / float(width(layer))) * random(seed * layers + layer, first + i);
    }
  }

  Floats gather(std::size_t layer) const {
    Floats whole(count(layer));
    MPI_Allgather(parts[layer].data(), int(parts[layer].size()), MPI_FLOAT, whole.data(), int(parts[layer].size()),
                  MPI_FLOAT, comm);
    return whole;
  }

  // Of samples first ... last - 1: returns the sum of their cross-entropy losses.
  double forward(std::size_t first, std::size_t last) {
    const std::size_t samples = last - first;
    units[0].resize(samples * inputs);
    for (std::size_t s = 0; s < samples; ++s)
      for (std::size_t i = 0; i < inputs; ++i) units[0][s * inputs + i] = input(first + s, i);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t in = width(layer), out = width(layer + 1);
      const Floats parameters = gather(layer);  // until the end of this turn
      units[layer + 1].resize(samples * out);
      for (std::size_t s = 0; s < samples; ++s) {
        float* y = &units[layer + 1][s * out];
        std::copy_n(&parameters[in * out], out, y);
        for (std::size_t i = 0; i < in; ++i)
          for (std::size_t o = 0; o < out; ++o) y[o] += units[layer][s * in + i] * parameters[i * out + o];
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

  // From the last layer to the first: the layer's gradient, its sum over the ranks, of which this rank gets its part,
  // and the update of that part. So there is one layer's gradient at a time.
  void backward_and_update() {
    const std::size_t samples = delta.size() / classes;
    for (std::size_t layer = layers; layer-- > 0;) {
      const std::size_t in = width(layer), out = width(layer + 1);
      const Floats parameters = layer > 0 ? gather(layer) : Floats();  // for the derivative by the layer's inputs
      Floats gradient(count(layer)), sum(parts[layer].size());
      std::vector<float> before(layer > 0 ? samples * in : 0);
      for (std::size_t s = 0; s < samples; ++s) {
        const float *x = &units[layer][s * in], *d = &delta[s * out];
        for (std::size_t o = 0; o < out; ++o) gradient[in * out + o] += rounded(d[o]);
        for (std::size_t i = 0; i < in; ++i)
          for (std::size_t o = 0; o < out; ++o) gradient[i * out + o] += rounded(x[i] * d[o]);
        for (std::size_t i = 0; i < in && layer > 0; ++i) {
          float all = 0;
          for (std::size_t o = 0; o < out; ++o) all += parameters[i * out + o] * d[o];
          before[s * in + i] = x[i] > 0 ? all : 0;  // the derivative of the ReLU
        }
      }
      delta = std::move(before);
      MPI_Reduce_scatter_block(gradient.data(), sum.data(), int(sum.size()), MPI_FLOAT, MPI_SUM, comm);
      for (std::size_t i = 0; i < sum.size(); ++i) parts[layer][i] -= learning_rate * (sum[i] / float(batch));
    }
  }
};

// Returns the mean loss of the last 10 steps.
double train(Network& network) {
  const std::size_t rank = std::size_t(network.rank), size = std::size_t(network.size), batch = network.batch;
  double loss = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    MPI_Pcontrol(1, "forward");
    const double sum = network.forward(step * batch + batch * rank / size, step * batch + batch * (rank + 1) / size);
    MPI_Pcontrol(-1, "forward");
    MPI_Pcontrol(1, "backward");
    network.backward_and_update();
    MPI_Pcontrol(-1, "backward");
    if (step + 10 >= steps) loss += sum / double(10 * batch);
  }
  MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, network.comm);
  return loss;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, right = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::size_t batch = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100;
  if (batch < 1 || batch > 1600) {
    if (rank == 0) std::fprintf(stderr, "train_sharded: batch must be a number from 1 to 1600, not '%s'\n", argv[1]);
    return MPI_Finalize(), 1;
  }
  double loss = 0;
  unsigned long most[2] = {};  // bytes: of the largest rank, of one process
  {
    Network network(0, batch, MPI_COMM_WORLD);
    loss = train(network);
    most[0] = std::exchange(Memory::most, 0);
    Network alone(0, batch, MPI_COMM_SELF);  // one process, the whole batch and all parameters
    const std::size_t before = Memory::most = Memory::now;
    train(alone);
    most[1] = Memory::most - before;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      Floats whole = network.gather(layer);
      whole.resize(alone.parts[layer].size());  // without the zeros at its end
      right &= whole == alone.parts[layer];
      most[1] += alone.parts[layer].size() * sizeof(float);
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, most, 2, MPI_UNSIGNED_LONG, MPI_MAX, MPI_COMM_WORLD);
  right = right && loss < 0.5 && (size == 1 || most[0] < most[1]);  // a guess has log 8 = 2.08
  if (rank == 0)
    std::printf("%s: loss %.4f; parameters and gradients: %lu KiB per rank, %lu in one process\n",
                right ? "RIGHT" : "WRONG", loss, most[0] / 1024, most[1] / 1024);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_sharded: standard output"), 1;
  return right ? 0 : 1;
}
