// The programs on libtorch as a user runs them, small.
#include "cifar10_files.hpp"
#include "fashion_mnist_ways.hpp"

namespace torch_programs_test {

using Options = std::vector<std::string>;

class Torch : public ::testing::Test {
 protected:
  static Ranks::End run(const std::string& program, int ranks, const Options& options,
                        const Way& way = quickest_way()) {
    return way.run(program, ranks, options);
  }

  // 35 images to learn from, 7 to test with
  static Options cifar10(const TemporaryFolder& folder, const Options& more) {
    write_cifar10(folder.path(), 7);
    const std::string path = folder.path();
    Options options{"--arch=resnet18", "--batch-size=4", "--learning-rate=0.01", "--data=" + path,
                    "--model-dir=" + path};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
};

class Backends : public Torch, public ::testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(By, Backends, ::testing::ValuesIn(one_way_a_library()), name_of_way);

TEST_P(Backends, GradientsAreTheMeansOfAllRanks) {
  for (const int ranks : counts_for(GetParam(), {2, 3})) {
    const Ranks::End end = run(PATH_torch_equality, ranks, {}, GetParam());
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_SAYS(end.output, std::to_string(ranks) + " ranks: 4 gradients in ");
    EXPECT_SAYS(end.output, "kinds of parameters: 1, of buffers: " + std::to_string(ranks) + ", after");
  }
}

TEST_F(Torch, PlantedFaultsAreFound) {
  Ranks::End end = run(PATH_torch_equality, 2, {"--plant", "missing-average"});
  EXPECT_EQ(end.status, 1);
  EXPECT_EQ(occurrences(end.output, "; 0 of"), 0u) << end.output;

  end = run(PATH_torch_equality, 2, {"--plant", "other-parameter"});
  EXPECT_EQ(end.status, 1);
  EXPECT_SAYS(end.output, "kinds of parameters: 2,");
}

// Two to four ranks: the sum of more than two depends on the order, which is that of the buckets.
TEST_P(Backends, ResumedTrainingGivesTheSameBits) {
  for (const int ranks : counts_for(GetParam(), {2, 4, 3})) {
    const auto train = [&](const TemporaryFolder& folder, const Options& more) {
      Options options{"--save-every", "1"};
      options.insert(options.end(), more.begin(), more.end());
      return run(PATH_resnet, ranks, cifar10(folder, options), GetParam());
    };
    const TemporaryFolder whole, broken;
    const std::string wanted = parameters_in(train(whole, {"--num-epochs", "3"}).output);
    const Ranks::End first = train(broken, {"--num-epochs", "1"});
    EXPECT_NE(parameters_in(first.output), wanted);
    // The seed is the checkpoint's.
    const Ranks::End second = train(broken, {"--num-epochs", "2", "--resume", "--seed", "9"});
    EXPECT_EQ(occurrences(second.output, "Epoch: 1, loss: "), 1u) << second.output;
    EXPECT_EQ(occurrences(second.output, "Epoch: 0, "), 0u) << second.output;
    EXPECT_SAYS(second.output, "Epoch: 1, Accuracy: ");
    // The newest is damaged: the one before is used.
    std::filesystem::resize_file(broken / "resnet_distributed.checkpoint", 100'000);
    const Ranks::End third = train(broken, {"--num-epochs", "3", "--resume"});
    EXPECT_SAYS(third.output, "resnet: warning: ");
    EXPECT_EQ(occurrences(third.output, "Epoch: 1, loss: "), 1u) << third.output;
    EXPECT_EQ(parameters_in(third.output), wanted) << ranks << " ranks";
    write_cifar10(whole.path(), 8);
    expect_refused({{{PATH_resnet, "--arch=resnet18", "--batch-size=4", "--data=" + whole.path().string(),
                      "--model-dir=" + broken.path().string(), "--resume"},
                     "a training with the data set of CRC-32 \""}});
  }
}

// The output has the lines of Horovod's benchmark, so that the same scripts can read it.
TEST_F(Torch, BenchmarkPrintsHorovodsLines) {
  for (const Options& more : {Options{}, {"--fp16-allreduce", "--channels-last"}}) {
    Options options{"--model=resnet18",       "--batch-size=2",           "--image-size=32",
                    "--num-warmup-batches=1", "--num-batches-per-iter=1", "--num-iters=3"};
    options.insert(options.end(), more.begin(), more.end());
    const Ranks::End end = run(PATH_synthetic_benchmark, 2, options);
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_MATCH(end.output,
                 "Model: resnet18\nBatch size: 2\nNumber of CPUs: 2\nRunning warmup...\nRunning benchmark...\n"
                 "Iter #0: ([0-9.]+) img/sec per CPU\nIter #1: ([0-9.]+) img/sec per CPU\n"
                 "Iter #2: ([0-9.]+) img/sec per CPU\nImg/sec per CPU: ([0-9.]+) \\+-([0-9.]+)\n"
                 "Total img/sec on 2 CPU\\(s\\): ([0-9.]+) \\+-([0-9.]+)\nRIGHT: ");
  }
}

TEST_F(Torch, BadCommandLinesAreRefused) {
  expect_refused({{{PATH_resnet, "--batch-size", "1"}, "--batch-size must be from 2"},
                  {{PATH_synthetic_benchmark, "--model", "vgg16"}, "not 'vgg16'"}});
  const TemporaryFolder folder;
  write_cifar10(folder.path(), 7);
  expect_refused({{{PATH_resnet, "--data", folder.path(), "--batch-size", "18"},
                   "--batch-size 18: 2 processes need 36 images a step, and there are 35"}},
                 2);
}

}  // namespace torch_programs_test
