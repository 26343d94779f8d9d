// The programs with --backend nccl, as on GPUs, on emulated ones (tools/emulated-gpu). A training must end as on the
// CPU, but for roundings, and with the same bits if it was interrupted.
#include "fashion_mnist_ways.hpp"

#include <test/support/emulated_gpu.hpp>

#if defined(EMULATED_GPU) && defined(PATH_mnrun) && defined(DDP_ON_GPU)
namespace emulated_gpu_test {

class OnEmulatedGpus : public ::testing::Test {
 protected:
  static Result start(int ranks, std::vector<std::string> words, bool on_gpus = true) {
    words.insert(words.begin(), {PATH_mnrun, "--standalone", "--nproc-per-node", std::to_string(ranks)});
    words.insert(words.end(), {"--backend", on_gpus ? "nccl" : "gloo"});
    return on_gpus ? run(words, on_emulated_gpus()) : run(words);
  }
  static Result train(int ranks, const Settings& settings, bool on_gpus = true) {
    return start(ranks, command(PATH_fashion_mnist, learn(settings)), on_gpus);
  }
  static std::string found(const Result& result, const std::string& pattern) {
    EXPECT_EQ(result.status, 0) << result.all();
    const Match match = match_in(result.out, pattern);
    EXPECT_FALSE(match.empty()) << result.all();
    return match.empty() ? "0" : match[1];
  }
  static std::string parameters(const Result& result) { return found(result, "parameters: ([0-9a-f]{16}) on every"); }
  static double loss(const Result& result, const std::string& pattern = "epoch 3: loss ([0-9.]+)") {
    return std::stod(found(result, pattern));
  }
  // Losses are printed with 4 digits. Roundings change the last one at most.
  static constexpr double close = 2e-3;
};

// A checkpoint that is written on one kind of device is good on the other.
TEST_F(OnEmulatedGpus, FashionMnistGoesOnFromCheckpointsOfEitherDevice) {
  const Result whole = train(2, {{"--min-accuracy", "90"}});
  EXPECT_SAYS(whole.out, "emulated GPUs");
  EXPECT_SAYS(whole.out, "; 2 ranks, nccl, on GPUs\n");
  for (const auto& [first, second] : {std::pair(true, true), {true, false}, {false, true}}) {
    const TemporaryFolder folder;
    Settings settings{{"--checkpoint", folder.path()}, {"--checkpoint-every", "5"}, {"--steps", "17"}};
    parameters(train(2, settings, first));
    settings.erase("--steps");
    const Result result = train(2, settings, second);
    EXPECT_SAYS(result.out, "step-0000000017.checkpoint, after step 17 of 33");
    EXPECT_NEAR(loss(result), loss(whole), close) << first << second;
    if (first && second) {
      EXPECT_EQ(parameters(result), parameters(whole));
    }
  }
}

TEST_F(OnEmulatedGpus, FashionMnistNamesTheRankWhoseLossIsNotFinite) {
  const Result result = train(3, {{"--nan", "1"}, {"--log-every", "1"}});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.err, "the loss of rank 1 is not finite in step 5; a smaller --learning-rate may help");
}

TEST_F(OnEmulatedGpus, TrainingsEndAsOnTheCpu) {
  const struct {
    std::vector<std::string> words;
    std::string loss;
  } cases[] = {
      {{PATH_random_mlp, "--hidden-layers", "3", "--hidden-units", "64", "--batch-size", "16"},
       "([0-9.]+) after 10 steps"},
      {{PATH_train_ddp, "--epochs", "20", "--learning-rate", "0.01"}, "epoch 20: loss ([0-9.]+)"},
      {{PATH_horovod_style, "--steps", "40"}, "step 40: loss ([0-9.]+)"},
      {command(PATH_fashion_mnist, learn({{"--precision", "double"}})), "epoch 3: loss ([0-9.]+)"},
      {command(PATH_fashion_mnist, learn({{"--optimizer", "adam"}, {"--patience", "3"}})), "epoch 3: loss ([0-9.]+)"}};
  for (const auto& c : cases)
    EXPECT_NEAR(loss(start(3, c.words), c.loss), loss(start(3, c.words, false), c.loss), close) << c.words.front();
}

}  // namespace emulated_gpu_test
#endif
