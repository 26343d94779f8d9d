// How much memory does a rank need? For a transformer that is trained with Adam, by each way to share the work.
//
//   g++ -std=c++20 -O2 memory_table.cpp -o memory_table
//   ./memory_table 8 32 4096 8192
//
// Its arguments: ranks, layers, width, and tokens that a rank has at a time. Exit status: 0 if the formulas also give
// what the ZeRO article prints, and what train_sharded.cpp and train_recompute.cpp allocate; 1 if not, 2 bad arguments.
// After: train_sharded.cpp, train_pipeline.cpp, train_mixed.cpp and train_recompute.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

struct Memory {  // bytes
  double parameters, gradients, optimizer, activations = 0;
  double all() const { return parameters + gradients + optimizer + activations; }
};

// Of that many parameters in 16 bits: the optimizer has 12 bytes for each, the master weight and Adam's two moments.
// `stage` is ZeRO's: from 1 the optimizer's state is sharded, from 2 the gradients, and from 3 the parameters.
Memory zero(int stage, double parameters, double ranks) {
  return {2 * parameters / (stage >= 3 ? ranks : 1), 2 * parameters / (stage >= 2 ? ranks : 1),
          12 * parameters / (stage >= 1 ? ranks : 1)};
}

// Parameters and gradients of a sharded network in float while it trains, as train_sharded has them: the parts of all
// layers; of the layer at work all parameters, all gradients, and their sum's part.
double sharded(const double* layers, int count, double ranks) {
  double parts = 0, largest = 0;
  for (int layer = 0; layer < count; ++layer) {
    const double part = std::ceil(layers[layer] / ranks);
    parts += part;
    largest = std::max(largest, part);
  }
  return 4 * (parts + 2 * largest * ranks + largest);
}

// Inputs of layers that are in memory when every k-th is kept, as train_recompute has them: kept ones, and those of one
// part. Its forward pass has one layer's inputs and outputs for a moment.
double recomputed(double layers, double every) {
  return std::max(layers / every + every - 1, layers / every + (every > 1) + 1);
}

bool known_answers() {
  bool right = true;
  const auto check = [&](const char* what, double found, double wanted, double digit) {
    const bool same = std::abs(found - wanted) <= digit;
    if (!same) std::printf("WRONG: %s: %g, wanted %g\n", what, found, wanted);
    right &= same;
  };
  const double article[] = {120, 31.4, 16.6, 1.9};  // GB: ZeRO (2020), figure 1, 7.5e9 parameters on 64 ranks
  for (const int stage : {0, 1, 2, 3}) check("ZeRO", zero(stage, 7.5e9, 64).all() / 1e9, article[stage], 0.05);
  const double layers[] = {65. * 128, 129. * 128, 129. * 128, 129. * 128, 129. * 128, 129. * 128, 129. * 8};
  check("train_sharded on 4 ranks", std::floor(sharded(layers, 7, 4) / 1024), 234, 0);
  check("train_sharded on 1 rank", std::floor(sharded(layers, 7, 1) / 1024), 552, 0);
  const double kept[][2] = {{1, 850}, {2, 500}, {4, 350}, {8, 450}, {16, 800}};
  for (const auto& [every, wanted] : kept) check("train_recompute", recomputed(16, every) * 50, wanted, 0);
  return right;
}

int main(int argc, char** argv) {
  double given[4] = {};  // ranks, layers, width, tokens
  for (int i = 0; i < 4; ++i) given[i] = argc == 5 ? std::strtod(argv[i + 1], nullptr) : 0;
  const auto [ranks, layers, width, tokens] = given;
  if (!(ranks >= 1 && layers >= ranks && width >= 1 && tokens >= 1))
    return std::fprintf(stderr,
                        "usage: memory_table RANKS LAYERS WIDTH TOKENS (with at least a layer for each rank)\n"),
           2;

  // A layer: four matrices for the attention, and two of the fourfold width. It keeps 34 bytes per token and unit for
  // the backward pass in 16 bits, with an attention that does not keep its scores (Korthikanti and others, 2022).
  const double layer = 12 * width * width, all = layers * layer, tokens_width = tokens * width;
  const double activations = 34 * tokens_width * layers, inputs = 2 * tokens_width * layers + 34 * tokens_width;
  const auto row = [](const char* name, Memory memory, double kept) {
    memory.activations = kept;
    std::printf("%-33s", name);
    for (const double bytes : {memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.all()})
      std::printf(" %11.1f", bytes / (1 << 30));
    std::printf("\n");
  };
  std::printf("%.2e parameters, %g ranks; GiB per rank\n", all, ranks);
  std::printf("%-33s  parameters   gradients   optimizer activations         all\n", "");
  row("data parallel, float", {4 * all, 4 * all, 8 * all}, 66 * tokens_width * layers);
  row("data parallel, 16 bits", zero(0, all, ranks), activations);
  row("data parallel, recomputing", zero(0, all, ranks), inputs);
  row("ZeRO 1", zero(1, all, ranks), activations);
  row("ZeRO 2", zero(2, all, ranks), activations);
  Memory shards = zero(3, all, ranks);
  shards.parameters += 2 * layer, shards.gradients += 2 * layer;  // the layer at work, whole
  row("ZeRO 3, FSDP", shards, activations);
  row("ZeRO 3, FSDP, recomputing", shards, inputs);
  const Memory part = zero(0, all / ranks, 1);
  row("tensor parallel", part, (10 + 24 / ranks) * tokens_width * layers);  // all ranks have these tokens
  row("pipeline, 1F1B, rank 0", part, activations);  // it keeps as many micro-batches as there are stages
  const bool right = known_answers();
  std::printf("%s: as the ZeRO article, train_sharded and train_recompute have it\n", right ? "RIGHT" : "WRONG");
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("memory_table: standard output"), 1;
  return right ? 0 : 1;
}
