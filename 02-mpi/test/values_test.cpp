#include "benchmark/values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace perf::values_test {

using multinode::DataType;

constexpr std::array redops = {Redop::sum, Redop::prod, Redop::max, Redop::min, Redop::avg};
constexpr std::array sizes = {1, 2, 3, 4, 8, 64, 300, 1000};
constexpr int block = 2;
constexpr Source all{Source::all, block};

template <class Function>  // function(of, what it is)
void for_every_reduction(Function&& function) {
  for (const DataType type : multinode::data_types)
    for (const Redop redop : redops)
      for (const int ranks : sizes)
        function(Values::Of{type, redop, true, ranks},
                 std::string(name_of(type)) + " " + std::string(name_of(redop)) + " " + std::to_string(ranks));
}

bool is_float(DataType type) {
  return multinode::with_type(type, [](auto zero) { return !std::is_integral_v<decltype(zero)>; });
}

std::int64_t reduced(Redop redop, std::int64_t x, std::int64_t y) {
  return redop == Redop::prod  ? x * y
         : redop == Redop::max ? std::max(x, y)
         : redop == Redop::min ? std::min(x, y)
                               : x + y;
}

// The result as it must be stored, from the exact reduction of all ranks.
std::vector<std::byte> stored(const Values::Of& of, std::span<const std::int64_t> results) {
  return multinode::with_type(of.type, [&](auto zero) {
    using T = decltype(zero);
    std::vector<std::byte> bytes(results.size() * sizeof(T));
    for (std::size_t i = 0; i < results.size(); ++i) {
      T value;
      if constexpr (std::is_integral_v<T>)
        value = static_cast<T>(of.redop == Redop::avg ? results[i] / of.ranks : results[i]);
      else
        value = static_cast<T>(of.redop == Redop::avg ? static_cast<double>(results[i]) / of.ranks
                                                      : static_cast<double>(results[i]));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
    }
    return bytes;
  });
}

std::vector<std::int64_t> reduction_of_all(const Values& values, const Values::Of& of, std::size_t count) {
  std::vector<std::int64_t> results(count);
  for (std::size_t i = 0; i < count; ++i) {
    results[i] = values.element(0, block, i);
    for (int rank = 1; rank < of.ranks; ++rank)
      results[i] = reduced(of.redop, results[i], values.element(rank, block, i));
  }
  return results;
}

std::vector<std::byte> filled(const Values& values, DataType type, int rank, int of_block, std::size_t count) {
  std::vector<std::byte> bytes(count * multinode::size_of(type));
  values.fill(bytes, rank, of_block);
  return bytes;
}

TEST(Values, InputsAreTheElements) {
  for (const DataType type : multinode::data_types) {
    const Values values({type, Redop::sum, false, 4});
    const std::size_t count = Values::period + 100;
    const auto bytes = filled(values, type, 3, block, count);
    multinode::with_type(type, [&](auto zero) {
      using T = decltype(zero);
      for (std::size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof value);
        ASSERT_EQ(static_cast<double>(value), static_cast<double>(values.element(3, block, i))) << name_of(type);
      }
    });
    EXPECT_EQ(values.count_wrong(bytes, {3, block}), 0u) << name_of(type);
  }
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

// The largest partial result that any ranks, in any order, can have is a value of the type: nothing is ever rounded.
TEST(Values, PartialResultsAreExactInEveryOrder) {
  for_every_reduction([&](const Values::Of& of, const std::string& what) {
    if (of.redop == Redop::avg) return;  // below
    const Values values(of);
    const double exact = exact_up_to(of.type);
    const double least =
        multinode::with_type(of.type, [&](auto zero) { return std::is_unsigned_v<decltype(zero)> ? 0 : -exact; });
    for (std::size_t index = 0; index < Values::period; index += 683) {
      double sum = 0, product = 1;
      for (int rank = 0; rank < of.ranks; ++rank) {
        const auto part = static_cast<double>(values.element(rank, block, index));
        ASSERT_GE(part, least) << what;
        ASSERT_LE(part, exact) << what;
        sum += std::abs(part);
        product *= std::abs(part);
      }
      if (of.redop == Redop::max || of.redop == Redop::min) continue;
      ASSERT_LE(of.redop == Redop::prod ? product : sum, exact) << what;
    }
  });
}

// In every order of the ranks, both if each element is multiplied by 1/n first, as NCCL does, and if the sum is
// divided.
TEST(Values, AveragesStayWithinTheirBound) {
  constexpr std::size_t count = 2000;
  std::mt19937 random(1);
  for (const DataType type : {DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64})
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 63, 64, 65, 100, 300, 1000}) {
      const Values::Of of{type, Redop::avg, true, ranks};
      const Values values(of);
      std::vector<int> order(static_cast<std::size_t>(ranks));
      std::iota(order.begin(), order.end(), 0);
      multinode::with_type(type, [&](auto zero) {
        using T = decltype(zero);
        using A = std::conditional_t<sizeof(T) == 2, float, T>;  // computed in float, rounded after each step
        const T factor = static_cast<T>(1.0 / ranks);
        for (const bool first : {true, false})
          for (int shuffle = 0; shuffle < 2; ++shuffle, std::ranges::shuffle(order, random)) {
            std::vector<T> result(count, T{});
            for (std::size_t i = 0; i < count; ++i) {
              for (const int rank : order) {
                const T x = static_cast<T>(static_cast<double>(values.element(rank, block, i)));
                const T term = first ? static_cast<T>(static_cast<A>(x) * static_cast<A>(factor)) : x;
                result[i] = static_cast<T>(static_cast<A>(result[i]) + static_cast<A>(term));
              }
              if (!first) result[i] = static_cast<T>(static_cast<A>(result[i]) / static_cast<A>(static_cast<T>(ranks)));
            }
            std::string wrong;
            EXPECT_EQ(values.count_wrong(std::as_bytes(std::span(result)), all, &wrong), 0u)
                << name_of(type) << " " << ranks << ": " << wrong;
          }
      });
    }
}

// If the part of any one rank is missing, at least one element shows it.
TEST(Values, AMissingRankShows) {
  for_every_reduction([&](const Values::Of& of, const std::string& what) {
    if (of.ranks == 1) return;
    // An average of 8-bit integers is nearly always 0.
    if (of.redop == Redop::avg && multinode::size_of(of.type) == 1 && of.ranks > 8) return;
    if (of.ranks > 300 && multinode::size_of(of.type) > 4) return;  // as those of 4 bytes
    const Values values(of);
    const auto result = [&](std::int64_t reduction) {
      return of.redop == Redop::avg && !is_float(of.type) ? reduction / of.ranks : reduction;
    };
    std::vector<bool> hidden(static_cast<std::size_t>(of.ranks), true);
    for (std::size_t i = 0; i < Values::period && std::ranges::count(hidden, true); ++i) {
      std::vector<std::int64_t> before, after;  // reductions of the ranks up to each, and from each on
      for (int rank = 0; rank < of.ranks; ++rank) before.push_back(values.element(rank, block, i));
      after = before;
      for (std::size_t r = 1; r < before.size(); ++r) before[r] = reduced(of.redop, before[r - 1], before[r]);
      for (std::size_t r = after.size() - 1; r-- > 0;) after[r] = reduced(of.redop, after[r + 1], after[r]);
      for (std::size_t r = 0; r < hidden.size(); ++r)
        if (hidden[r]) {
          const std::int64_t without = r == 0                   ? after[1]
                                       : r + 1 == hidden.size() ? before[r - 1]
                                                                : reduced(of.redop, before[r - 1], after[r + 1]);
          hidden[r] = result(without) == result(before.back());
        }
    }
    EXPECT_EQ(std::ranges::count(hidden, true), 0) << what;

    for (const int missing : {0, of.ranks / 2, of.ranks - 1}) {  // and count_wrong sees it
      if (of.ranks > (values.rounded() ? 300 : 64)) break;
      std::vector<std::int64_t> without(5000);
      for (std::size_t i = 0; i < without.size(); ++i) {
        const int first = missing == 0 ? 1 : 0;
        without[i] = values.element(first, block, i);
        for (int rank = first + 1; rank < of.ranks; ++rank)
          if (rank != missing) without[i] = reduced(of.redop, without[i], values.element(rank, block, i));
      }
      EXPECT_GT(values.count_wrong(stored(of, without), all), 0u) << what << " without rank " << missing;
    }
  });
}

TEST(Values, EveryFlippedBitIsFound) {
  std::mt19937_64 random(1);
  constexpr std::size_t count = 2 * Values::period + 77;
  for (const DataType type : multinode::data_types)
    for (const bool reduces : {false, true}) {
      const Values::Of of{type, Redop::sum, reduces, 4};
      const Values values(of);
      const Source source = reduces ? all : Source{3, block};
      auto bytes = reduces ? stored(of, reduction_of_all(values, of, count)) : filled(values, type, 3, block, count);
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

TEST(Values, AnAverageThatIsNotANumberIsWrong) {
  const Values::Of of{DataType::float32, Redop::avg, true, 3};
  const Values values(of);
  auto bytes = stored(of, reduction_of_all(values, of, 100));
  std::fill_n(bytes.begin() + 28, 4, std::byte{0xFF});
  EXPECT_EQ(values.count_wrong(bytes, all), 1u);
}

TEST(Values, WrongBlocksAreFound) {
  constexpr std::size_t count = 3000;
  for (const DataType type : multinode::data_types) {
    const Values values({type, Redop::sum, false, 4, 1, 5});
    const auto right = filled(values, type, 3, block, count);
    const std::size_t mostly = count * 9 / 10;
    EXPECT_GT(values.count_wrong(right, {2, block}), mostly) << "another rank's, " << name_of(type);
    EXPECT_GT(values.count_wrong(right, {3, block + 1}), mostly) << "another block, " << name_of(type);
    EXPECT_GT(Values({type, Redop::sum, false, 4, 1, 6}).count_wrong(right, {3, block}), mostly)
        << "another round's, " << name_of(type);
    EXPECT_GT(Values({type, Redop::sum, false, 4, 2, 5}).count_wrong(right, {3, block}), mostly)
        << "another seed's, " << name_of(type);
    const std::vector<std::byte> poison(right.size(), std::byte{0xA5});
    EXPECT_GT(values.count_wrong(poison, {3, block}), mostly) << "not written, " << name_of(type);
    EXPECT_EQ(values.count_wrong(poison, {Source::nothing, 0}), 0u);
  }
}

TEST(Values, AnExactReductionIsRightAndWrongBlocksAreFound) {
  for_every_reduction([&](const Values::Of& of, const std::string& what) {
    const Values values(of);
    const auto right = stored(of, reduction_of_all(values, of, of.ranks > 64 ? 500 : 5000));
    std::string first;
    EXPECT_EQ(values.count_wrong(right, all, &first), 0u) << what << ": " << first;
    // An average of 8-bit integers is nearly always 0.
    if (of.ranks > 64 || (of.redop == Redop::avg && multinode::size_of(of.type) == 1 && of.ranks > 8)) return;
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
    const Values values({type, Redop::sum, false, 4});
    const std::size_t element = multinode::size_of(type);
    const auto bytes = filled(values, type, 1, block, 2 * longest);
    for (std::size_t shift = 1; shift <= longest; shift *= 2)
      EXPECT_GT(values.count_wrong(std::span(bytes).subspan(shift * element, 1000 * element), {1, block}), 900u)
          << name_of(type) << " by " << shift;
  }
}

}  // namespace perf::values_test
