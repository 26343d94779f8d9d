// P ranks against one process, by each launcher's library: mpirun's over MPI, bare processes' over Gloo.
#include "fashion_mnist_ways.hpp"

namespace ddp_equality_test {

class Equality : public ::testing::TestWithParam<Way> {};

TEST_P(Equality, ManyRanksAreOneProcessWithTheSameBatches) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Ranks::End end = GetParam().run(PATH_ddp_equality, ranks, {});
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_EQ(occurrences(end.output, "; ranks bit-identical"), 5u) << end.output;
  }
}

TEST_P(Equality, AFaultIsAnswered) {
  Ranks::End end = GetParam().run(PATH_ddp_equality, 3, {"--plant", "dropped-sample"});
  EXPECT_EQ(end.status, 1) << end.output;
  end = GetParam().run(PATH_ddp_equality, 3, {"--plant", "no-overlap"});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "no bucket was sent before the last gradient was computed");
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

INSTANTIATE_TEST_SUITE_P(By, Equality, ::testing::ValuesIn(one_way_a_library()), name_of_way);

}  // namespace ddp_equality_test
