// Tensor parallelism, as Megatron-LM splits a pair of layers: the first by columns, the second by rows. All ranks have
// the same batch, and each a part of the hidden units: one all-reduce forward and one backward join the parts.
//
//   mpicxx -std=c++20 -O2 train_tensor.cpp -o train_tensor
//   mpirun -n 2 ./train_tensor [BATCH]
//
// Exit status: 0 if the network has learned, and each rank's part of the parameters is that of one process, to the last
// bit, with two all-reduces per step; 1 if not.
// After: train_sharded.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr std::size_t inputs = 64, width = 32, hidden = 256, classes = 8, steps = 30;
constexpr float learning_rate = 0.05F;

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

// To a multiple of 2^-16, by an addition that leaves float no finer bits. Sums of such numbers below 2^8 are exact in
// float, so that they do not depend on how many ranks share the additions. The sums here are over a layer's units, so
// they do not grow with the batch.
float rounded(float x) { return (x + 192) - 192; }

int all_reduces = 0;
void all_reduce(std::vector<float>& values, MPI_Comm comm) {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_FLOAT, MPI_SUM, comm);
  ++all_reduces;
}

struct Part {
  std::size_t first, count;
};

// Some rows (inputs) and columns (outputs) of a layer.
struct Layer {
  Part rows, columns;
  std::vector<float> weights, biases, weight_gradients, bias_gradients;

  // A weight's number in the whole layer decides its first value.
  Layer(std::uint64_t stream, std::size_t whole_rows, std::size_t whole_columns, Part r, Part c)
      : rows(r), columns(c), weights(r.count * c.count), biases(c.count) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = std::sqrt(6 / float(whole_rows)) *
                   random(stream, (r.first + i / c.count) * whole_columns + c.first + i % c.count);
  }

  // Returns the sums over its rows for each of the samples in x, without the biases.
  std::vector<float> forward(const std::vector<float>& x) const {
    std::vector<float> y(x.size() / rows.count * columns.count);
    for (std::size_t k = 0; k < x.size(); ++k)
      for (std::size_t c = 0; c < columns.count; ++c)
        y[k / rows.count * columns.count + c] += rounded(x[k] * weights[k % rows.count * columns.count + c]);
    return y;
  }

  void add_biases(std::vector<float>& y) const {
    for (std::size_t k = 0; k < y.size(); ++k) y[k] += biases[k % columns.count];
  }

  // From the derivative d of the loss by the outputs: computes the gradients, and returns the derivative by x, of which
  // its columns are a part.
  std::vector<float> backward(const std::vector<float>& x, const std::vector<float>& d) {
    weight_gradients.assign(weights.size(), 0);
    bias_gradients.assign(biases.size(), 0);
    for (std::size_t k = 0; k < d.size(); ++k) bias_gradients[k % columns.count] += d[k];
    std::vector<float> before(x.size());
    for (std::size_t k = 0; k < x.size(); ++k)
      for (std::size_t c = 0; c < columns.count; ++c) {
        const std::size_t w = k % rows.count * columns.count + c, o = k / rows.count * columns.count + c;
        weight_gradients[w] += x[k] * d[o];
        before[k] += rounded(weights[w] * d[o]);
      }
    return before;
  }

  void update(std::size_t batch) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= learning_rate * (weight_gradients[i] / float(batch));
    for (std::size_t i = 0; i < biases.size(); ++i) biases[i] -= learning_rate * (bias_gradients[i] / float(batch));
  }

  // True if it has the bits of its rows and columns of the whole layer.
  bool is_part_of(const Layer& whole) const {
    bool same = true;
    for (std::size_t i = 0; i < weights.size(); ++i)
      same &= weights[i] ==
              whole.weights[(rows.first + i / columns.count) * whole.columns.count + columns.first + i % columns.count];
    for (std::size_t i = 0; i < biases.size(); ++i) same &= biases[i] == whole.biases[columns.first + i];
    return same;
  }
};

void relu(std::vector<float>& x) {
  for (float& value : x) value = std::max(value, 0.0F);
}
void relu_backward(const std::vector<float>& x, std::vector<float>& derivative) {
  for (std::size_t k = 0; k < x.size(); ++k) derivative[k] = x[k] > 0 ? derivative[k] : 0;
}

struct Network {
  MPI_Comm comm;
  std::size_t batch;  // samples per step
  Part mine;          // of the hidden units
  Layer start, by_columns, by_rows;

  Network(MPI_Comm communicator, std::size_t samples)
      : comm(communicator),
        batch(samples),
        mine(part_of_hidden(comm)),
        start(1, inputs, width, {0, inputs}, {0, width}),   // whole, on every rank
        by_columns(2, width, hidden, {0, width}, mine),     // width x hidden
        by_rows(3, hidden, classes, mine, {0, classes}) {}  // hidden x classes

  static Part part_of_hidden(MPI_Comm comm) {
    int rank = 0, size = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    const std::size_t first = hidden * std::size_t(rank) / std::size_t(size);
    return {first, hidden * std::size_t(rank + 1) / std::size_t(size) - first};
  }

  // Returns the sum of the samples' cross-entropy losses.
  double step(std::size_t first) {
    MPI_Pcontrol(1, "forward");
    std::vector<float> x(batch * inputs);
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = input(first + k / inputs, k % inputs);
    std::vector<float> a = start.forward(x);
    start.add_biases(a);
    relu(a);
    std::vector<float> h = by_columns.forward(a);  // this rank's hidden units need all of a, which each rank has
    by_columns.add_biases(h);
    relu(h);                                    // unit by unit, so no message is needed between the two layers
    std::vector<float> y = by_rows.forward(h);  // what this rank's hidden units add to each output
    all_reduce(y, comm);
    by_rows.add_biases(y);  // once: before the all-reduce each rank would add them

    double loss = 0;
    for (std::size_t s = 0; s < batch; ++s) {
      float* scores = &y[s * classes];  // become the derivative of the loss by them
      std::array<float, classes> powers{};
      float all = 0;
      for (std::size_t c = 0; c < classes; ++c) all += powers[c] = std::exp(scores[c]);
      loss -= std::log(powers[class_of(first + s)] / all);
      for (std::size_t c = 0; c < classes; ++c) scores[c] = powers[c] / all - float(c == class_of(first + s));
    }
    MPI_Pcontrol(-1, "forward");

    MPI_Pcontrol(1, "backward");
    std::vector<float> d = by_rows.backward(h, y);  // every rank has y whole: no message
    relu_backward(h, d);
    d = by_columns.backward(a, d);  // the part of the derivative that came through its hidden units
    all_reduce(d, comm);
    relu_backward(a, d);
    start.backward(x, d);  // the same on all ranks, which have the same batch: no all-reduce
    MPI_Pcontrol(-1, "backward");
    MPI_Pcontrol(1, "update");
    for (Layer* layer : {&start, &by_columns, &by_rows}) layer->update(batch);
    MPI_Pcontrol(-1, "update");
    return loss;
  }

  double train() {  // returns the mean loss of the last 10 steps
    double loss = 0;
    for (std::size_t s = 0; s < steps; ++s) {
      const double sum = step(s * batch);
      if (s + 10 >= steps) loss += sum / double(10 * batch);
    }
    return loss;
  }
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::size_t batch = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100;
  if (batch < 1 || batch > 1600) {
    if (rank == 0) std::fprintf(stderr, "train_tensor: batch must be a number from 1 to 1600, not '%s'\n", argv[1]);
    return MPI_Finalize(), 1;
  }
  Network network(MPI_COMM_WORLD, batch), alone(MPI_COMM_SELF, batch);
  const double loss = network.train();
  const int calls = all_reduces;
  alone.train();
  int right = loss < 0.5 && calls == 2 * int(steps) && network.start.is_part_of(alone.start) &&  // a guess has 2.08
              network.by_columns.is_part_of(alone.by_columns) && network.by_rows.is_part_of(alone.by_rows);
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: loss %.4f; %zu of %zu hidden units on rank 0, %d all-reduces in %zu steps\n",
                right ? "RIGHT" : "WRONG", loss, network.mine.count, hidden, calls, steps);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_tensor: standard output"), 1;
  return right ? 0 : 1;
}
