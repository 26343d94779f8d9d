// The reducer among real ranks, over each backend, started in each way.
#include "fashion_mnist_ways.hpp"

#include <testing/host_nccl.hpp>

namespace reducer_ranks_test {

class ReducerRanks : public ::testing::TestWithParam<Way> {
 protected:
  Ranks::End run(int ranks, std::vector<std::string> options) {
    return GetParam().run(PATH_reducer_ranks, ranks, std::move(options));
  }
};

TEST_P(ReducerRanks, EveryElementIsRight) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Ranks::End end = run(ranks, {});
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_SAYS(end.output, " " + std::to_string(ranks) + " ranks: ");
    EXPECT_SAYS(end.output, " checks, 0 wrong");
  }
}

TEST_P(ReducerRanks, ModelsThatDifferAreRefused) {
  const struct {
    std::string what, of_rank_0, of_last;
    int parameter;
  } cases[] = {
      {"shape", "'second weights', 70 x 100 of float", "'second weights', 100 x 70 of float", 3},
      {"name", "'first bias', 10 of float", "'bias', 10 of float", 1},
      {"type", "'second bias', 100 of float", "'second bias', 100 of int32", 4},
      {"missing", "'second bias', 100 of float", "missing", 4},
  };
  for (const auto& c : cases) {
    if (c.what != "shape" && GetParam().starter != quickest_way().starter) continue;
    const int ranks = c.what == "name" ? 2 : 3;
    const Ranks::End end = run(ranks, {"--differs", c.what});
    EXPECT_EQ(end.status, 1) << end.output;
    EXPECT_EQ(
        occurrences(end.output, "the ranks train different models: parameter " + std::to_string(c.parameter) + " is "),
        1u)
        << end.output;
    EXPECT_SAYS(end.output, c.of_rank_0 + (ranks == 2 ? " on rank 0" : " on ranks 0, 1"));
    EXPECT_SAYS(end.output, c.of_last + " on rank " + std::to_string(ranks - 1));
  }
}

TEST_P(ReducerRanks, TheRankWithANaNIsNamed) {
  for (const int bad : counts_for(GetParam(), {0, 2})) {
    const Ranks::End end = run(3, {"--nan", std::to_string(bad)});
    EXPECT_EQ(end.status, 1) << end.output;
    EXPECT_EQ(occurrences(end.output, "reducer_ranks: "), 1u) << end.output;
    EXPECT_SAYS(end.output, "reducer_ranks: rank " + std::to_string(bad) + " (host ");
    EXPECT_SAYS(end.output, "): element 5 of the gradient of 'second weights' is NaN\n");
  }
}

TEST(ReducerRanksStall, ARankAsleepIsNamedWithTheBucketAndForgiven) {
  const Ranks::End end =
      ways().front().run(PATH_reducer_ranks, 3, {"--asleep", "1", "--nap", "11000", "--timeout", "16"});
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_EQ(occurrences(end.output, "reducer_ranks: stalled: rank "), 1u) << end.output;
  EXPECT_SAYS(end.output, " s in all_reduce of bucket 2 (collective number ");
  EXPECT_SAYS(end.output, "; rank 1 (host ");
  EXPECT_SAYS(end.output, " is late: it is in its own code, after all_reduce of bucket 1 (collective number ");
  EXPECT_SAYS(end.output, " checks, 0 wrong");
}

#if defined(HOST_NCCL) && defined(PATH_mnrun)
class ReducerOverNccl : public ::testing::TestWithParam<int> {};

TEST_P(ReducerOverNccl, EveryElementIsRight) {
  const Result result = run({PATH_mnrun, "--standalone", "--nproc-per-node", std::to_string(GetParam()),
                             PATH_reducer_ranks, "--backend", "nccl"},
                            on_host_nccl());
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "stand-ins of GPUs (host-nccl)");
  EXPECT_SAYS(result.out, "nccl, " + std::to_string(GetParam()) + " ranks: ");
  EXPECT_SAYS(result.out, " checks, 0 wrong");
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerOverNccl, ::testing::Values(2, 3, 4), ::testing::PrintToStringParamName());
#endif

INSTANTIATE_TEST_SUITE_P(Ways, ReducerRanks, ::testing::ValuesIn(one_way_a_library()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace reducer_ranks_test
