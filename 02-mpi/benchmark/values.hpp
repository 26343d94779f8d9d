// values.hpp: what the ranks put into their input, and what must come out, exactly.
#pragma once

#include "collective.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace perf {

// nccl-tests' reductions. avg: the sum divided by the number of ranks; mulsum: the sum of each rank's elements times
// its premultiplier().
enum class Redop { sum, prod, max, min, avg, mulsum };
std::string_view name_of(Redop redop);
multinode::Reduction reduction_of(Redop redop);  // mulsum: sum
constexpr int premultiplier(int rank) { return 1 + rank % 2; }

// Whole numbers, pseudo-random in (seed, round, rank, block, index), so small that every partial result, in every
// order, is representable in `type`; then every order of summation gives the same bits, and the check is exact. For
// reductions only some ranks contribute to an element where all of them could not. They repeat after `period` elements,
// a prime: a shift by any block of another length shows.
class Values {
 public:
  static constexpr std::size_t period = 16381;

  struct Of {
    multinode::DataType type = multinode::DataType::float32;
    Redop redop = Redop::sum;
    bool reduces = false;
    int ranks = 1;
    std::uint64_t seed = 1;
    std::uint64_t round = 0;
  };
  explicit Values(const Of& of);

  // Fills a whole number of elements of `of.type`: block `block` of the input of `rank`.
  void fill(std::span<std::byte> bytes, int rank, int block) const;

  // Elements of `bytes` that are not what `source` says. The first wrong one goes to `first`, if given, as text:
  // "element 5 is 3, not 4". Compares bits; but an average over a number of ranks that is not a power of two is
  // rounded by NCCL in more than one way, and has a bound: see values.cpp. An average of 8-bit integers over many ranks
  // is nearly always 0: there a missing rank does not show.
  std::size_t count_wrong(std::span<const std::byte> bytes, const Source& source, std::string* first = nullptr) const;

  // The whole numbers themselves, for tests: the element of an input; and of the result, as a double.
  std::int64_t element(int rank, int block, std::size_t index) const;
  double expected(const Source& source, std::size_t index) const;
  bool rounded() const;  // whether results have a bound

 private:
  Of of_;
  std::uint64_t salt_;
  std::int64_t low_ = 0;      // the least value
  std::uint64_t values_ = 1;  // how many there are
  int contributors_ = 1;      // ranks whose element is not neutral_
  std::int64_t neutral_ = 0;
};

}  // namespace perf
