// train_all_reduce.cpp in 16 bits: weights, activations, derivatives and the gradients on the network are bfloat16 or
// float16, and the optimizer changes master weights in float. A table shows what happens without one of the parts.
//
//   mpicxx -std=c++20 -O2 train_mixed.cpp -o train_mixed
//   mpirun -n 2 ./train_mixed
//
// Exit status: 0 if mixed precision learns as float does, all ranks have the same weights, the sums on the network are
// within their bound, and what must fail fails; 1 if not.
// After: train_all_reduce.cpp. New: MPI_Op_create.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr std::size_t layers = 4, inputs = 64, hidden = 128, classes = 8, batch = 100, steps = 60;
constexpr float learning_rate = 0.05F;
constexpr float tokens = 1 << 22;  // the loss is their mean, as in the training of a large language model
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

// A float in 16 bits: a sign, exponent bits, and mantissa bits. bfloat16 has 8 and 7 of them, float16 5 and 10.
template <int exponent_bits, int mantissa_bits>
struct Format {
  using Bits = std::uint16_t;
  static constexpr int digits = mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
  static constexpr float smallest = digits == 10 ? 0x1p-24F : 0x1p-133F;
  static Bits encode(float x) {  // rounds to the nearest, and to even in the middle
    const int sign = std::signbit(x) << 15, infinite = most << digits;
    if (!std::isfinite(x)) return Bits(sign | infinite | int(std::isnan(x)));
    const int exponent = std::max(std::ilogb(x), 1 - bias);  // a smaller one takes digits away
    const int number = int(std::nearbyint(std::ldexp(std::abs(x), digits - exponent)));
    return Bits(sign | std::min(((exponent + bias - 1) << digits) + number, infinite));
  }
  static float decode(Bits bits) {
    const int exponent = bits >> digits & most, number = bits & ((1 << digits) - 1);
    if (exponent == most) return number ? NAN : bits >> 15 ? -INFINITY : INFINITY;
    const float size = std::ldexp(float(number + (exponent ? 1 << digits : 0)), std::max(exponent, 1) - bias - digits);
    return bits >> 15 ? -size : size;
  }
};
using BFloat16 = Format<8, 7>;
using Float16 = Format<5, 10>;
struct Float {  // as it is, to compare
  using Bits = float;
  static constexpr int digits = 23;
  static constexpr float smallest = 0x1p-149F;
  static float encode(float x) { return x; }
  static float decode(float x) { return x; }
};
template <class F>
float rounded(float x) {
  return F::decode(F::encode(x));
}

// MPI_SUM does not know 16-bit floats. On each rank that adds, MPI calls this for pieces of the data.
template <class F>
void add(void* in, void* sums, int* count, MPI_Datatype*) {
  auto *x = static_cast<typename F::Bits*>(in), *sum = static_cast<typename F::Bits*>(sums);
  for (int i = 0; i < *count; ++i) sum[i] = F::encode(F::decode(sum[i]) + F::decode(x[i]));
}

struct Result {
  double loss = 0, lost = 0;  // of the last 10 steps; part of the derivatives that became 0
  int skipped = 0, right = 1;
};

template <class F>
Result train(const char* name, float scale, bool master_weights) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Op op;
  MPI_Op_create(add<F>, 1, &op);
  std::vector<float> master;
  std::array<std::size_t, layers> begin{};  // of a layer's weights; there are no biases
  for (std::size_t layer = 0; layer < layers; ++layer) {
    begin[layer] = master.size();
    for (std::size_t i = 0; i < width(layer) * width(layer + 1); ++i)
      master.push_back(std::sqrt(6 / float(width(layer))) * random(layer, i));
  }
  Result result;
  double counts[3] = {};  // derivatives that are not 0, those that rounding makes 0, the loss
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t first = step * batch + batch * std::size_t(rank) / std::size_t(size);
    const std::size_t samples = step * batch + batch * std::size_t(rank + 1) / std::size_t(size) - first;
    std::vector<float> weights, gradients(master.size());
    for (const float weight : master) weights.push_back(rounded<F>(weight));
    const auto round = [&](float exact) {
      counts[0] += exact != 0, counts[1] += exact != 0 && rounded<F>(exact) == 0;
      return rounded<F>(exact);
    };
    std::array<std::vector<float>, layers + 1> units;
    for (std::size_t k = 0; k < samples * inputs; ++k)
      units[0].push_back(rounded<F>(input(first + k / inputs, k % inputs)));
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::size_t in = width(layer), out = width(layer + 1);
      units[layer + 1].resize(samples * out);
      for (std::size_t k = 0; k < samples * in; ++k)  // products are added in float, as tensor cores do it
        for (std::size_t o = 0; o < out; ++o)
          units[layer + 1][k / in * out + o] += units[layer][k] * weights[begin[layer] + k % in * out + o];
      for (float& unit : units[layer + 1]) unit = rounded<F>(layer + 1 < layers ? std::max(unit, 0.0F) : unit);
    }
    std::vector<float> d = units[layers];
    for (std::size_t s = 0; s < samples; ++s) {
      std::array<float, classes> powers{};
      float all = 0;
      for (std::size_t c = 0; c < classes; ++c) all += powers[c] = std::exp(d[s * classes + c]);
      const std::size_t answer = class_of(first + s);
      if (step + 10 >= steps) counts[2] -= std::log(powers[answer] / all) / (10 * batch);
      for (std::size_t c = 0; c < classes; ++c)
        d[s * classes + c] = round((powers[c] / all - float(c == answer)) / tokens * scale);
    }
    for (std::size_t layer = layers; layer-- > 0;) {
      const std::size_t in = width(layer), out = width(layer + 1);
      std::vector<float> before(samples * in);
      for (std::size_t k = 0; k < samples * in; ++k) {
        float sum = 0;
        for (std::size_t o = 0; o < out; ++o) {
          gradients[begin[layer] + k % in * out + o] += units[layer][k] * d[k / in * out + o];
          sum += weights[begin[layer] + k % in * out + o] * d[k / in * out + o];
        }
        if (layer > 0 && units[layer][k] > 0) before[k] = round(sum);
      }
      d = before;
    }
    std::vector<typename F::Bits> sums;
    for (float& gradient : gradients) sums.push_back(F::encode(gradient)), gradient = F::decode(sums.back());
    MPI_Allreduce(MPI_IN_PLACE, sums.data(), int(sums.size()), sizeof sums[0] == 2 ? MPI_UINT16_T : MPI_FLOAT, op,
                  MPI_COMM_WORLD);
    std::vector<float> sizes;  // an addition is off by at most half a digit of their sum; twice that is allowed
    for (const float gradient : gradients) sizes.push_back(std::abs(gradient));
    for (std::vector<float>* values : {&gradients, &sizes})
      MPI_Allreduce(MPI_IN_PLACE, values->data(), int(values->size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    bool finite = true;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float sum = F::decode(sums[i]), digit = std::max(std::ldexp(sizes[i], -F::digits), F::smallest);
      finite &= std::isfinite(sum);
      result.right &= !std::isfinite(sum) || std::abs(sum - gradients[i]) <= float(size) * digit;
    }
    if (!finite) scale /= 2, ++result.skipped;  // on all ranks, because a sum with an infinity is infinite
    for (std::size_t i = 0; i < sums.size() && finite; ++i) {
      master[i] -= learning_rate * (F::decode(sums[i]) / scale * tokens / batch);
      if (!master_weights) master[i] = rounded<F>(master[i]);
    }
  }
  MPI_Op_free(&op);
  std::vector<float> of_rank_0 = master;
  MPI_Bcast(of_rank_0.data(), int(master.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
  result.right &= master == of_rank_0;
  MPI_Allreduce(MPI_IN_PLACE, counts, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  result.lost = counts[1] / counts[0], result.loss = counts[2];
  if (rank == 0)
    std::printf("%-33s %.4f %8.1f %% %8d %8zu KiB\n", name, result.loss, 100 * result.lost, result.skipped,
                master.size() * sizeof(typename F::Bits) / 1024);
  return result;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (rank == 0) std::printf("%-33s   loss  underflow  skipped   all-reduce\n", "");
  const Result reference = train<Float>("float", 1, true), mixed = train<BFloat16>("bfloat16", 1, true),
               no_master = train<BFloat16>("bfloat16, no master weights", 1, false),
               plain = train<Float16>("float16", 1, true),
               scaled = train<Float16>("float16, loss times 2^16", 0x1p16F, true),
               dynamic = train<Float16>("float16, loss times 2^40 or less", 0x1p40F, true);
  const auto as_float = [&](const Result& result) { return std::abs(result.loss / reference.loss - 1) < 0.05; };
  int right = reference.loss < 0.2 && as_float(mixed) && as_float(scaled) && no_master.loss > 1.2 * reference.loss &&
              plain.loss > 1.2 * reference.loss && plain.lost > 0.5 && dynamic.skipped > 0;
  for (const Result& result : {reference, mixed, no_master, plain, scaled, dynamic}) right &= result.right;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: bfloat16 and scaled float16 learn as float does\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("train_mixed: standard output"), 1;
  return right ? 0 : 1;
}
