// random_mlp as a user runs it, with a small network.
#include "fashion_mnist_ways.hpp"

namespace random_mlp_test {

// Trains in 5 epochs of 2 steps. Returns what it prints.
std::string learn(int ranks, std::vector<std::string> options) {
  options.insert(options.end(), {"--hidden-layers", "5", "--hidden-units", "64", "--batch-size", "16"});
  const auto [output, lines] = results(quickest_way(), PATH_random_mlp, ranks, options);
  EXPECT_SAYS(output, "RIGHT: the loss fell; parameters: ");
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_SAYS(output, "[rank " + std::to_string(rank) + "] Epoch 4 | Batchsize: 16 | Steps: 2 | Loss: 0.");
  EXPECT_EQ(lines.at(4).at("steps"), 10);
  EXPECT_LT(lines.at(5).at("after"), lines.at(5).at("before"));
  EXPECT_GT(lines.at(5).at("step_ms"), 0);
  EXPECT_EQ(lines.at(5).at("identical"), true);
  return output;
}

TEST(RandomMlp, LearnsOnAnyNumberOfRanks) {
  EXPECT_SAYS(learn(1, {}), "13969 parameters; 1 rank, ");
  EXPECT_SAYS(learn(2, {}), "13969 parameters in 1 bucket; 2 ranks, ");
  const std::string small = learn(3, {"--bucket-bytes", "20K"});
  EXPECT_SAYS(small, "13969 parameters in 3 buckets; 3 ranks, ");
  EXPECT_NE(parameters_in(learn(3, {"--bucket-bytes", "20K", "--compression", "bfloat16"})), parameters_in(small));
}

}  // namespace random_mlp_test
