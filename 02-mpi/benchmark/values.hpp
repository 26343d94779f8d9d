// values.hpp: the input of each rank and the exact result.
#pragma once

#include "collective.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace perf {

// Pseudo-random integers, a function of (seed, round, rank, block, index). They are so small that every partial sum, in
// any order, is representable in `type`: every order of summation gives the same bits, and the check is exact. If a sum
// over all ranks would be too large, only some ranks contribute to an element. The values repeat after `period`
// elements, a prime, so a shift by a block of any other length is found.
class Values {
 public:
  static constexpr std::size_t period = 16381;

  struct Of {
    multinode::DataType type = multinode::DataType::float32;
    bool sums = false;
    int ranks = 1;
    std::uint64_t seed = 1;
    std::uint64_t round = 0;
  };
  explicit Values(const Of& of);

  // Fills a whole number of elements of `of.type`: block `block` of the input of `rank`.
  void fill(std::span<std::byte> bytes, int rank, int block) const;

  // The number of elements of `bytes` that differ in a bit from what `source` describes. `first`, if given, gets a text
  // about the first one: "element 5 is 3, not 4".
  std::size_t count_wrong(std::span<const std::byte> bytes, const Source& source, std::string* first = nullptr) const;

  // The whole numbers themselves, for tests: the element of an input, and of the result.
  std::int64_t element(int rank, int block, std::size_t index) const;
  std::int64_t expected(const Source& source, std::size_t index) const;

 private:
  Of of_;
  std::uint64_t salt_;
  std::int64_t low_ = 0;      // the least value
  std::uint64_t values_ = 1;  // how many there are
  int contributors_ = 1;      // ranks whose element is not 0
};

}  // namespace perf
