// A pipeline: each rank has some whole layers, a stage, and the batch passes through the stages in micro-batches. A
// stage works in the order that is called 1F1B: as soon as it can, one forward pass and one backward pass in turn.
//
//   mpicxx -std=c++20 -O2 train_pipeline.cpp -o train_pipeline
//   mpirun -n 4 ./train_pipeline
//
// Exit status: 0 if the network has learned, each stage has the parameters of one process, to the last bit, and idle
// time and kept activations are those of the formulas; 1 if not.
// After: train_tensor.cpp. New: a schedule of micro-batches, and a clock that travels with the messages.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <utility>
#include <vector>

constexpr std::size_t layers = 8, width = 64, classes = 8, batch = 100, steps = 40;
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
std::vector<float> inputs_of(std::size_t first, std::size_t samples) {
  std::vector<float> x;
  for (std::size_t s = first; s < first + samples; ++s)
    for (std::size_t i = 0; i < width; ++i)
      x.push_back(random(1000 + class_of(s), i) + random(999, (s + 1) * 1000 + i));
  return x;
}

struct Layer {  // without biases; it has `width` inputs
  std::size_t out;
  std::vector<float> weights, gradients;

  explicit Layer(std::size_t layer) : out(layer + 1 < layers ? width : classes), gradients(width * out) {
    for (std::size_t i = 0; i < width * out; ++i) weights.push_back(std::sqrt(6 / float(width)) * random(layer, i));
  }

  std::vector<float> forward(const std::vector<float>& x) const {
    std::vector<float> y(x.size() / width * out);
    for (std::size_t k = 0; k < x.size(); ++k)
      for (std::size_t o = 0; o < out; ++o) y[k / width * out + o] += x[k] * weights[k % width * out + o];
    for (float& value : y) value = out == width ? std::max(value, 0.0F) : value;  // the last layer has no ReLU
    return y;
  }

  // Adds to the gradients, sample after sample: in the same order, however the batch is cut.
  std::vector<float> backward(const std::vector<float>& x, const std::vector<float>& d) {
    std::vector<float> before(x.size());
    for (std::size_t k = 0; k < x.size(); ++k) {
      for (std::size_t o = 0; o < out; ++o) {
        gradients[k % width * out + o] += x[k] * d[k / width * out + o];
        before[k] += weights[k % width * out + o] * d[k / width * out + o];
      }
      if (x[k] <= 0) before[k] = 0;  // the derivative of the ReLU
    }
    return before;
  }

  void update() {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] -= learning_rate * (std::exchange(gradients[i], 0.0F) / float(batch));
  }
};

struct MicroBatch {
  std::size_t first, samples;
  std::vector<std::vector<float>> units;  // the inputs of each layer of the stage, and the outputs of the last one
  MPI_Request sent = MPI_REQUEST_NULL;
};

struct Stage {
  MPI_Comm comm;
  int rank = 0, size = 0;
  std::vector<Layer> own;       // layers
  std::deque<MicroBatch> kept;  // whose backward passes are still to come
  std::size_t most_kept = 0;
  double loss = 0;  // of the last 10 steps
  float busy = 0;   // seconds
  // In slots (a forward pass is 1, a backward pass, with twice as many products, 2), and in seconds of CPU time. The
  // clocks travel with each message, because the receiver cannot begin before the sender has finished.
  std::array<float, 2> clocks{};

  explicit Stage(MPI_Comm communicator) : comm(communicator) {
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (std::size_t layer = first_layer(rank); layer < first_layer(rank + 1); ++layer) own.emplace_back(layer);
  }
  std::size_t first_layer(int stage) const { return layers * std::size_t(stage) / std::size_t(size); }

  void worked(float slots, float seconds) { clocks[0] += slots, clocks[1] += seconds, busy += seconds; }
  std::vector<float> receive(std::size_t count, int from) {
    std::vector<float> values(count + 2);
    MPI_Recv(values.data(), int(values.size()), MPI_FLOAT, from, 0, comm, MPI_STATUS_IGNORE);
    for (const std::size_t c : {0, 1}) clocks[c] = std::max(clocks[c], values[count + c]);
    values.resize(count);
    return values;
  }

  void forward(std::size_t first, std::size_t samples) {
    MicroBatch& micro = kept.emplace_back(MicroBatch{first, samples, {}});
    most_kept = std::max(most_kept, kept.size());
    micro.units.push_back(rank > 0 ? receive(samples * width, rank - 1) : inputs_of(first, samples));
    const std::clock_t start = std::clock();
    for (const Layer& layer : own) micro.units.push_back(layer.forward(micro.units.back()));
    worked(1, float(std::clock() - start) / CLOCKS_PER_SEC);
    std::vector<float>& y = micro.units.back();
    y.insert(y.end(), clocks.begin(), clocks.end());
    if (rank + 1 < size) MPI_Isend(y.data(), int(y.size()), MPI_FLOAT, rank + 1, 0, comm, &micro.sent);
  }

  void backward() {  // of the oldest micro-batch
    MicroBatch micro = std::move(kept.front());
    kept.pop_front();
    std::vector<float> d = rank + 1 == size ? of_loss(micro) : receive(micro.samples * width, rank + 1);
    const std::clock_t start = std::clock();
    for (std::size_t layer = own.size(); layer-- > 0;) d = own[layer].backward(micro.units[layer], d);
    worked(2, float(std::clock() - start) / CLOCKS_PER_SEC);
    MPI_Wait(&micro.sent, MPI_STATUS_IGNORE);  // at once: the next stage has received it
    d.insert(d.end(), clocks.begin(), clocks.end());
    if (rank > 0) MPI_Send(d.data(), int(d.size()), MPI_FLOAT, rank - 1, 0, comm);
  }

  std::vector<float> of_loss(const MicroBatch& micro) {  // the derivative of the cross-entropy by the last outputs
    std::vector<float> d = micro.units.back();
    for (std::size_t s = 0; s < micro.samples; ++s) {
      std::array<float, classes> powers{};
      float all = 0;
      for (std::size_t c = 0; c < classes; ++c) all += powers[c] = std::exp(d[s * classes + c]);
      const std::size_t answer = class_of(micro.first + s);
      for (std::size_t c = 0; c < classes; ++c) d[s * classes + c] = powers[c] / all - float(c == answer);
      if (micro.first >= (steps - 10) * batch) loss -= std::log(powers[answer] / all) / (10 * batch);
    }
    return d;
  }

  void train(std::size_t micro_batches) {
    const std::size_t ahead = std::min(micro_batches, std::size_t(size - 1 - rank));  // of the first backward pass
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t m = 0; m < micro_batches; ++m) {
        const std::size_t first = batch * m / micro_batches;
        forward(step * batch + first, batch * (m + 1) / micro_batches - first);
        if (m >= ahead) backward();
      }
      while (!kept.empty()) backward();
      for (Layer& layer : own) layer.update();
    }
  }
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, right = 1;
  double loss = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size > int(layers))
    return std::fprintf(stderr, "train_pipeline: %zu layers are for at most as many ranks\n", layers), MPI_Finalize(),
           1;
  Stage alone(MPI_COMM_SELF);  // one process with all layers, and the whole batch at once
  alone.train(1);
  if (rank == 0) std::printf("micro-batches  kept by rank 0  bubble (p-1)/(m+p-1)  in slots  in CPU time\n");
  for (const int m : {1, 2, 4, 8, 16}) {
    Stage stage(MPI_COMM_WORLD);
    stage.train(std::size_t(m));
    MPI_Allreduce(MPI_IN_PLACE, stage.clocks.data(), 2, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &stage.busy, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&stage.loss, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (std::size_t layer = stage.first_layer(rank); const Layer& own : stage.own)
      right &= own.weights == alone.own[layer++].weights;
    right = right && loss < 0.5 && stage.clocks[0] == float(3 * steps) * float(m + size - 1) &&
            stage.most_kept == std::size_t(std::min(m, size - rank));  // and a guess has a loss of log 8 = 2.08
    if (rank == 0)
      std::printf("%13d %15zu %20.1f %% %7.1f %% %10.1f %%\n", m, stage.most_kept, 100.0 * (size - 1) / (m + size - 1),
                  100 * (1 - float(3 * steps) * float(m) / stage.clocks[0]),
                  100 * (1 - stage.busy / float(size) / stage.clocks[1]));
  }
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: loss %.4f, the weights of one process\n", right ? "RIGHT" : "WRONG", loss);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_pipeline: standard output"), 1;
  return right ? 0 : 1;
}
