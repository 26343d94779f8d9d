// The programs on libtorch as a user runs them, small.
#include "cifar10_files.hpp"
#include "fashion_mnist_ways.hpp"

#include <testing/json_lines.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <regex>

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
    EXPECT_SAYS(end.output, std::to_string(ranks) + " ranks: 10 gradients in ");
    EXPECT_SAYS(end.output, "kinds of parameters: 1, of buffers: " + std::to_string(ranks) + ", after");
  }
}

TEST_F(Torch, PlantedFaultsAreFound) {
  Ranks::End end = run(PATH_torch_equality, 2, {"--plant", "missing-average"});
  EXPECT_EQ(end.status, 1);
  std::smatch match;
  ASSERT_TRUE(std::regex_search(end.output, match, std::regex(R"(difference/bound (\S+))"))) << end.output;
  EXPECT_GE(std::stod(match[1]), 10);

  end = run(PATH_torch_equality, 2, {"--plant", "other-parameter"});
  EXPECT_EQ(end.status, 1);
  EXPECT_SAYS(end.output, "kinds of parameters: 2,");

  end = run(PATH_torch_equality, 2, {"--plant", "other-model"});
  EXPECT_EQ(end.status, 1);
  EXPECT_EQ(
      occurrences(end.output, "'head.weight', 10 x 16 of float on rank 0; 'head.weight', 10 x 17 of float on rank 1"),
      1u)
      << end.output;
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
    EXPECT_FALSE(std::filesystem::exists(broken / "resnet_distributed.checkpoint.lock"));
    write_cifar10(whole.path(), 8);
    expect_refused({{{PATH_resnet, "--arch=resnet18", "--batch-size=4", "--data=" + whole.path().string(),
                      "--model-dir=" + broken.path().string(), "--resume"},
                     "a training with the data set of CRC-32 \""}});
  }
}

TEST_F(Torch, LearnsTheSyntheticImagesByHeart) {
  const TemporaryFolder folder;
  const std::string file = folder.path().string() + "/results.json";
  const Ranks::End end =
      run(PATH_resnet, 2,
          {"--arch", "resnet18", "--use-syn", "--steps-syn", "3", "--image-size", "32", "--batch-size", "4",
           "--learning-rate", "0.01", "--num-epochs", "3", "--model-dir", folder.path().string(), "--json", file});
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_TRUE(std::regex_search(end.output, std::regex("Epoch: 2, loss: [0-9.]+, samples_per_sec: [0-9.]+\n")))
      << end.output;
  const std::vector<nlohmann::json> lines = multinode::testing::json_lines(file);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].at("fingerprint").at("world_size"), 2);
  EXPECT_GT(lines[1].at("loss"), 3);  // a guess costs ln 1000 = 6.9
  EXPECT_LT(lines[3].at("loss"), 0.5);
  EXPECT_EQ(lines[3].at("epoch"), 2);
  EXPECT_GT(lines[3].at("samples_per_second"), 0);
  EXPECT_EQ(lines[4].at("right"), true);
  EXPECT_EQ(lines[4].at("parameters"), parameters_in(end.output));
}

// The output has the lines of Horovod's benchmark, so that the same scripts can read it.
TEST_F(Torch, BenchmarkPrintsHorovodsLines) {
  for (const Options& more : {Options{}, {"--fp16-allreduce", "--channels-last"}}) {
    Options options{"--model=resnet18",       "--batch-size=2",           "--image-size=32",
                    "--num-warmup-batches=1", "--num-batches-per-iter=1", "--num-iters=3"};
    options.insert(options.end(), more.begin(), more.end());
    const Ranks::End end = run(PATH_synthetic_benchmark, 2, options);
    EXPECT_EQ(end.status, 0) << end.output;
    std::smatch match;
    ASSERT_TRUE(std::regex_search(
        end.output, match,
        std::regex("Model: resnet18\nBatch size: 2\nNumber of CPUs: 2\nRunning warmup...\nRunning benchmark...\n"
                   "Iter #0: ([0-9.]+) img/sec per CPU\nIter #1: ([0-9.]+) img/sec per CPU\n"
                   "Iter #2: ([0-9.]+) img/sec per CPU\nImg/sec per CPU: ([0-9.]+) \\+-([0-9.]+)\n"
                   "Total img/sec on 2 CPU\\(s\\): ([0-9.]+) \\+-([0-9.]+)\nRIGHT: ")))
        << end.output;
    std::vector<double> number;
    for (std::size_t i = 1; i < match.size(); ++i) number.push_back(std::stod(match[i]));
    const double mean = (number[0] + number[1] + number[2]) / 3;
    double squares = 0;
    for (int i = 0; i < 3; ++i)
      squares += (number[static_cast<std::size_t>(i)] - mean) * (number[static_cast<std::size_t>(i)] - mean);
    EXPECT_NEAR(number[3], mean, 0.1);  // printed with one digit
    EXPECT_NEAR(number[4], 1.96 * std::sqrt(squares / 3), 0.25);
    EXPECT_NEAR(number[5], 2 * number[3], 0.15);
    EXPECT_NEAR(number[6], 2 * number[4], 0.15);
  }
}

TEST_F(Torch, BadCommandLinesAreRefused) {
  expect_refused({{{PATH_resnet, "--arch", "resnet19"},
                   "must be resnet18, resnet34, resnet50, resnet101 or resnet152, not 'resnet19'"},
                  {{PATH_resnet, "--batch-size", "1"}, "--batch-size must be from 2"},
                  {{PATH_resnet, "--data", "/nowhere"}, "/nowhere"},
                  {{PATH_synthetic_benchmark, "--model", "vgg16"}, "not 'vgg16'"},
                  {{PATH_synthetic_benchmark, "--num-warmup-batches", "-1"}, "--num-warmup-batches must be from 0"}});
  const TemporaryFolder folder;
  write_cifar10(folder.path(), 7);
  expect_refused({{{PATH_resnet, "--data", folder.path(), "--batch-size", "18"},
                   "--batch-size 18: 2 processes need 36 images a step, and there are 35"}},
                 2);
}

}  // namespace torch_programs_test
