#include "benchmark/values.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace perf::values_test {

using multinode::DataType;

constexpr std::array sizes = {1, 2, 3, 4, 8, 64, 300, 1000};
constexpr int block = 2;
constexpr Source all{Source::all, block};

template <class Function>  // function(of, what it is)
void for_every_sum(Function&& function) {
  for (const DataType type : multinode::data_types)
    for (const int ranks : sizes)
      function(Values::Of{type, true, ranks}, std::string(name_of(type)) + " " + std::to_string(ranks));
}

// The result as it must be stored.
std::vector<std::byte> stored(DataType type, std::span<const std::int64_t> results) {
  return multinode::with_type(type, [&](auto zero) {
    using T = decltype(zero);
    std::vector<std::byte> bytes(results.size() * sizeof(T));
    for (std::size_t i = 0; i < results.size(); ++i) {
      const T value = static_cast<T>(results[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
    }
    return bytes;
  });
}

// The sums over all ranks but `missing`.
std::vector<std::int64_t> sums(const Values& values, int ranks, std::size_t count, int missing = -1) {
  std::vector<std::int64_t> results(count);
  for (std::size_t i = 0; i < count; ++i)
    for (int rank = 0; rank < ranks; ++rank)
      if (rank != missing) results[i] += values.element(rank, block, i);
  return results;
}

std::vector<std::byte> filled(const Values& values, DataType type, int rank, int of_block, std::size_t count) {
  std::vector<std::byte> bytes(count * multinode::size_of(type));
  values.fill(bytes, rank, of_block);
  return bytes;
}

// All whole numbers from 0 (or, if the type has a sign, from minus this) to this are values of the type.
double exact_up_to(DataType type) {
  if (type == DataType::bfloat16) return 0x1p8;
  if (type == DataType::float16) return 0x1p11;
  return multinode::with_type(type, [](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    return Limits::is_integer ? static_cast<double>(Limits::max()) : std::ldexp(1.0, Limits::digits);
  });
}

// The largest partial sum that any ranks, in any order, can have is a value of the type: nothing is ever rounded.
TEST(Values, PartialSumsAreExactInEveryOrder) {
  for_every_sum([&](const Values::Of& of, const std::string& what) {
    const Values values(of);
    const double exact = exact_up_to(of.type);
    const double least =
        multinode::with_type(of.type, [&](auto zero) { return std::is_unsigned_v<decltype(zero)> ? 0 : -exact; });
    for (std::size_t index = 0; index < Values::period; index += 683) {
      double sum = 0;
      for (int rank = 0; rank < of.ranks; ++rank) {
        const auto part = static_cast<double>(values.element(rank, block, index));
        ASSERT_GE(part, least) << what;
        sum += std::abs(part);
      }
      ASSERT_LE(sum, exact) << what;
    }
  });
}

// If the part of any one rank is missing, at least one element shows it.
TEST(Values, AMissingRankShows) {
  for_every_sum([&](const Values::Of& of, const std::string& what) {
    const Values values(of);
    for (int rank = 0; rank < of.ranks; ++rank) {
      std::size_t i = 0;
      while (i < Values::period && values.element(rank, block, i) == 0) ++i;
      EXPECT_LT(i, Values::period) << what << ": the part of rank " << rank << " is 0 everywhere";
    }
    if (of.ranks > 300) return;
    for (const int missing : {0, of.ranks / 2, of.ranks - 1})  // and count_wrong sees it
      EXPECT_GT(values.count_wrong(stored(of.type, sums(values, of.ranks, 5000, missing)), all), 0u)
          << what << " without rank " << missing;
  });
}

TEST(Values, EveryFlippedBitIsFound) {
  std::mt19937_64 random(1);
  constexpr std::size_t count = 2 * Values::period + 77;
  for (const DataType type : multinode::data_types)
    for (const bool summed : {false, true}) {
      const Values values({type, summed, 4});
      const Source source = summed ? all : Source{3, block};
      auto bytes = summed ? stored(type, sums(values, 4, count)) : filled(values, type, 3, block, count);
      ASSERT_EQ(values.count_wrong(bytes, source), 0u);
      int found = 0;
      for (int i = 0; i < 100; ++i) {
        const std::size_t at = i == 0 ? 0 : i == 1 ? bytes.size() - 1 : random() % bytes.size();
        const auto bit = std::byte(1u << random() % 8);
        bytes[at] ^= bit;
        std::string first;
        found += values.count_wrong(bytes, source, &first) == 1 &&
                 first.starts_with("element " + std::to_string(at / multinode::size_of(type)) + " is ");
        bytes[at] ^= bit;
      }
      EXPECT_EQ(found, 100) << name_of(type);
    }
}

TEST(Values, WrongBlocksAreFound) {
  constexpr std::size_t count = 3000;
  for (const DataType type : multinode::data_types) {
    const Values values({type, false, 4, 1, 5});
    const auto right = filled(values, type, 3, block, count);
    const std::size_t mostly = count * 9 / 10;
    EXPECT_GT(values.count_wrong(right, {2, block}), mostly) << "another rank's, " << name_of(type);
    EXPECT_GT(values.count_wrong(right, {3, block + 1}), mostly) << "another block, " << name_of(type);
    EXPECT_GT(Values({type, false, 4, 1, 6}).count_wrong(right, {3, block}), mostly)
        << "another round's, " << name_of(type);
    EXPECT_GT(Values({type, false, 4, 2, 5}).count_wrong(right, {3, block}), mostly)
        << "another seed's, " << name_of(type);
    const std::vector<std::byte> poison(right.size(), std::byte{0xA5});
    EXPECT_GT(values.count_wrong(poison, {3, block}), mostly) << "not written, " << name_of(type);
  }
}

TEST(Values, AnExactSumIsRightAndWrongBlocksAreFound) {
  for_every_sum([&](const Values::Of& of, const std::string& what) {
    const Values values(of);
    const auto right = stored(of.type, sums(values, of.ranks, of.ranks > 64 ? 500 : 5000));
    std::string first;
    EXPECT_EQ(values.count_wrong(right, all, &first), 0u) << what << ": " << first;
    EXPECT_GT(values.count_wrong(right, {Source::all, block + 1}), 0u) << "another block, " << what;
    Values::Of later = of;
    ++later.round;
    EXPECT_GT(Values(later).count_wrong(right, all), 0u) << "another round's, " << what;
    const std::vector<std::byte> poison(right.size(), std::byte{0xA5});
    EXPECT_GT(values.count_wrong(poison, all), 0u) << "not written, " << what;
  });
}

TEST(Values, AShiftByAPowerOfTwoIsFound) {
  constexpr std::size_t longest = 1 << 18;
  for (const DataType type : multinode::data_types) {
    const Values values({type, false, 4});
    const std::size_t element = multinode::size_of(type);
    const auto bytes = filled(values, type, 1, block, 2 * longest);
    for (std::size_t shift = 1; shift <= longest; shift *= 2)
      EXPECT_GT(values.count_wrong(std::span(bytes).subspan(shift * element, 1000 * element), {1, block}), 900u)
          << name_of(type) << " by " << shift;
  }
}

}  // namespace perf::values_test
