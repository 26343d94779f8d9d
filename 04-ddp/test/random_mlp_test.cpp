// random_mlp as a user runs it, with a small network.
#include "fashion_mnist_ways.hpp"

namespace random_mlp_test {

TEST(RandomMlp, LearnsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {  // 5 epochs of 2 steps
    std::vector<std::string> options{"--hidden-layers", "5", "--hidden-units", "64", "--batch-size", "16"};
    if (ranks == 3) options.insert(options.end(), {"--compression", "bfloat16", "--bucket-bytes", "20K"});
    const auto [output, lines] = results(quickest_way(), PATH_random_mlp, ranks, options);
    EXPECT_SAYS(output, "RIGHT: the loss fell; parameters: ");
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_SAYS(output, "[rank " + std::to_string(rank) + "] Epoch 4 | Batchsize: 16 | Steps: 2 | Loss: 0.");
    ASSERT_EQ(lines.size(), 6u);
    EXPECT_EQ(lines[4].at("steps"), 10);
    EXPECT_LT(lines[5].at("after"), lines[5].at("before"));
    EXPECT_GT(lines[5].at("step_ms"), 0);
    EXPECT_EQ(lines[5].at("identical"), true);
  }
}

}  // namespace random_mlp_test
