// P ranks against one process, by each launcher's library: mpirun's over MPI, bare processes' over Gloo.
#include "fashion_mnist_ways.hpp"

#include <map>
#include <regex>

namespace ddp_equality_test {

class Equality : public ::testing::TestWithParam<Way> {
 protected:
  struct Line {
    double ratio, with_faults;  // of difference and bound
    std::string parameters;
  };
  // By what was trained. Lines of ranks that are not bit-identical are none.
  static std::map<std::string, Line> lines_of(const std::string& output) {
    std::map<std::string, Line> lines;
    const std::regex line(
        R"(ranks: (.*): difference/bound (\S+), with faults (\S+); ranks bit-identical, ([0-9a-f]+))");
    for (std::sregex_iterator at(output.begin(), output.end(), line), end; at != end; ++at)
      lines[(*at)[1]] = {std::stod((*at)[2]), std::stod((*at)[3]), (*at)[4]};
    return lines;
  }
};

TEST_P(Equality, ManyRanksAreOneProcessWithTheSameBatches) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Ranks::End end = GetParam().run(PATH_ddp_equality, ranks, {});
    EXPECT_EQ(end.status, 0) << end.output;
    const auto lines = lines_of(end.output);
    EXPECT_EQ(lines.size(), 5u) << end.output;
    for (const auto& [training, line] : lines) {
      EXPECT_LE(line.ratio, 1) << end.output;
      EXPECT_GE(line.with_faults, 10) << end.output;
    }
    // Exercise 3: with two ranks a sum has one order, whatever the buckets.
    if (ranks == 2) {
      EXPECT_EQ(lines.at("SGD, cross-entropy").parameters, lines.at("SGD, cross-entropy, one bucket").parameters);
    }
  }
}

TEST_P(Equality, AFaultIsAnswered) {
  const Ranks::End end = GetParam().run(PATH_ddp_equality, 3, {"--plant", "dropped-sample"});
  EXPECT_EQ(end.status, 1) << end.output;
  for (const auto& [training, line] : lines_of(end.output)) EXPECT_GE(line.ratio, 10) << training;
}

TEST_P(Equality, ModelsThatDifferAreRefused) {
  for (const auto& [plant, says] :
       {std::pair{"other-shape", "2 is 'layer 2 weights', 8 x 16 of double on ranks 0, 1; 'layer 2 weights', 9 x 16"},
        {"more-layers", "6 is 'layer 4 weights', 4 x 4 of double on rank 2; missing on ranks 0, 1"}}) {
    const Ranks::End end = GetParam().run(PATH_ddp_equality, 3, {"--plant", plant});
    EXPECT_EQ(end.status, 1) << end.output;
    EXPECT_EQ(occurrences(end.output, std::string("the ranks train different models: parameter ") + says), 1u)
        << end.output;
  }
}

TEST(EqualityOfALateRank, ItIsNamedWithTheBucketAndForgiven) {
  const Ranks::End end = ways().front().run(PATH_ddp_equality, 3, {"--plant", "late-rank", "--timeout", "16"});
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_EQ(occurrences(end.output, "ddp_equality: stalled: rank "), 1u) << end.output;
  EXPECT_SAYS(end.output, " s in all_reduce of bucket 2 (collective number ");
  EXPECT_SAYS(end.output, "; rank 1 (host ");
  EXPECT_SAYS(end.output, " is late: it is in its own code, after all_reduce of bucket 1 (collective number ");
}

INSTANTIATE_TEST_SUITE_P(By, Equality, ::testing::ValuesIn(one_way_a_library()), name_of_way);

}  // namespace ddp_equality_test
