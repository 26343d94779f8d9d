#include <gtest/gtest.h>
#include <multinode/communicator/data_type.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace multinode {
namespace {

template <class T>
T combined(Reduction reduction, T x, T y) {
  T out{};
  combine(data_type_of<T>(), reduction, &out, &x, &y, 1);
  return out;
}

TEST(Combine, IntegersWrapAround) {
  EXPECT_EQ(combined<std::uint8_t>(Reduction::sum, 200, 100), 44);
  EXPECT_EQ(combined<std::uint8_t>(Reduction::product, 16, 17), 16);
  EXPECT_EQ(combined<std::int8_t>(Reduction::sum, 100, 100), -56);
  EXPECT_EQ(combined<std::int8_t>(Reduction::product, -128, -1), -128);
  EXPECT_EQ(combined<std::uint32_t>(Reduction::product, 1u << 31, 3), 1u << 31);
  EXPECT_EQ(combined<std::uint64_t>(Reduction::sum, std::numeric_limits<std::uint64_t>::max(), 2), 1u);
  EXPECT_EQ(combined<std::int32_t>(Reduction::sum, std::numeric_limits<std::int32_t>::max(), 1),
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(combined<std::int64_t>(Reduction::product, std::int64_t{1} << 62, 2), std::int64_t{1} << 63);
}

TEST(Combine, SignsCountInMinAndMax) {
  EXPECT_EQ(combined<std::int8_t>(Reduction::max, -1, 1), 1);
  EXPECT_EQ(combined<std::uint8_t>(Reduction::max, 255, 1), 255);
  EXPECT_EQ(combined<std::uint32_t>(Reduction::min, 0x80000000u, 1), 1u);
  EXPECT_EQ(combined<std::uint64_t>(Reduction::max, std::uint64_t{1} << 63, 1), std::uint64_t{1} << 63);
}

TEST(Combine, TheOrderDoesNotShowInMinAndMax) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [x, y] : {std::pair(0.0, -0.0), {-0.0, 0.0}, {nan, 1.0}, {1.0, nan}, {2.0, 1.0}, {1.0, 2.0}})
    for (const Reduction reduction : {Reduction::min, Reduction::max}) {
      const double one = combined(reduction, x, y);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(one), std::bit_cast<std::uint64_t>(combined(reduction, y, x)));
      EXPECT_EQ(std::isnan(one), std::isnan(x) || std::isnan(y));
    }
  EXPECT_TRUE(std::signbit(combined(Reduction::min, 0.0f, -0.0f)));
  EXPECT_FALSE(std::signbit(combined(Reduction::max, -0.0f, 0.0f)));
}

TEST(Combine, ShortFloatsAreRoundedOnce) {
  EXPECT_EQ(combined(Reduction::sum, half(2048.0f), half(1.0f)), half(2048.0f));  // a tie rounds to even
  EXPECT_EQ(combined(Reduction::sum, half(2048.0f), half(3.0f)), half(2052.0f));
  EXPECT_EQ(combined(Reduction::sum, bfloat16(256.0f), bfloat16(1.0f)), bfloat16(256.0f));
  EXPECT_EQ(combined(Reduction::product, bfloat16(3.0f), bfloat16(0.5f)), bfloat16(1.5f));
  EXPECT_EQ(combined(Reduction::max, half(-2.0f), half(-3.0f)), half(-2.0f));
}

// The value of the bits by the definition of IEEE 754: `exponent_bits` between the sign and the fraction.
template <class T>
double meaning(std::uint16_t bits) {
  constexpr int fraction_bits = std::is_same_v<T, half> ? 10 : 7;
  constexpr int exponent_bits = 15 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1)
    value = fraction ? NAN : HUGE_VAL;
  else if (exponent == 0)
    value = std::ldexp(fraction, 1 - bias - fraction_bits);
  else
    value = std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return bits & 0x8000 ? -value : value;
}

// Each of the 65,536 values, and three floats between neighbours: nearer to one, nearer to the other, and the tie.
template <class T>
void expect_conversions() {
  std::vector<float> between;
  std::vector<std::uint16_t> wanted;
  const auto expect = [&](double from, int to) {
    between.push_back(static_cast<float>(from));
    wanted.push_back(static_cast<std::uint16_t>(to));
  };
  std::vector<T> shorts;
  for (int i = 0; i < 0x10000; ++i) shorts.push_back(std::bit_cast<T>(static_cast<std::uint16_t>(i)));
  std::vector<float> floats(shorts.size());
  convert(std::span<const T>(shorts), floats);
  for (int i = 0; i < 0x10000; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double value = meaning<T>(shorts[at].bits);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(floats[at]), std::bit_cast<std::uint32_t>(static_cast<float>(shorts[at])));
    EXPECT_EQ(std::isnan(floats[at]), std::isnan(value));
    EXPECT_EQ(std::signbit(floats[at]), (i & 0x8000) != 0);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(T(floats[at]))));
      continue;
    }
    EXPECT_EQ(floats[at], value);
    expect(value, i);
    if (std::isinf(value)) continue;
    // Infinity stands for the number that would follow the largest one.
    double next = meaning<T>(static_cast<std::uint16_t>(i + 1));
    if (std::isinf(next)) next = 2 * value - meaning<T>(static_cast<std::uint16_t>(i - 1));
    const auto middle = static_cast<float>((value + next) / 2);
    expect(middle, i % 2 ? i + 1 : i);
    expect(std::nextafter(middle, 0.0f), i);
    expect(std::nextafter(middle, std::copysign(HUGE_VALF, middle)), i + 1);
  }
  std::vector<T> rounded(between.size());
  convert(std::span<const float>(between), std::span(rounded));
  for (std::size_t i = 0; i < between.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, wanted[i]) << between[i];
    ASSERT_EQ(static_cast<T>(between[i]).bits, wanted[i]) << between[i];
  }
  const float nans[] = {NAN,  -NAN, std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0xffffffffu),
                        1.0f, 2.0f, std::bit_cast<float>(0x7fa00000u), std::bit_cast<float>(0xff812345u)};
  T out[8];  // one group of the vectorised conversion
  convert(std::span<const float>(nans), std::span(out));
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::isnan(static_cast<float>(out[i])), std::isnan(nans[i]));
    EXPECT_EQ(out[i].bits, T(nans[i]).bits);
  }
  for (std::size_t count = 0; count < 20; ++count) {  // lengths near a multiple of eight
    std::vector<T> some(21, T(77.0f));
    convert(std::span<const float>(between).first(count), std::span(some).first(count));
    for (std::size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].bits, i < count ? wanted[i] : T(77.0f).bits);
  }
}
TEST(Convert, Half) { expect_conversions<half>(); }
TEST(Convert, Bfloat16) { expect_conversions<bfloat16>(); }

}  // namespace
}  // namespace multinode
