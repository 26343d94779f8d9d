#include "values.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace perf {

namespace {

using multinode::DataType;

// SplitMix64's finalizer (Steele, Lea, Flood 2014): turns neighbouring numbers into unrelated ones.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// All whole numbers from 0 (or minus this) to this are representable.
std::int64_t largest(DataType type) {
  return type == DataType::bfloat16  ? 1 << 8
         : type == DataType::float16 ? 1 << 11
         : type == DataType::int8    ? 127
         : type == DataType::uint8   ? 255
                                     : 1 << 20;  // enough
}

bool is_signed(DataType type) {
  return type != DataType::uint8 && type != DataType::uint32 && type != DataType::uint64;
}
bool is_float(DataType type) {
  return multinode::with_type(type, [](auto zero) { return !std::is_integral_v<decltype(zero)>; });
}

double unit_roundoff(DataType type) {
  return type == DataType::bfloat16  ? 0x1p-8
         : type == DataType::float16 ? 0x1p-11
         : type == DataType::float32 ? 0x1p-24
                                     : 0x1p-53;
}

// The error bound of a floating-point average over n ranks, where n is not a power of two, in units of max |x| / n.
// NCCL multiplies each element by the rounded 1/n, and adds. Let c elements differ from 0, and let u be the unit
// roundoff. Each term has an error of at most 2u (two roundings), 2cu in all. Each of c roundings (c - 1 additions, and
// the expected quotient) has an error of at most u times a partial sum, which is at most c: c c u in all. Together (c +
// 2) c u. Twice that covers the terms of higher order.
double average_bound(DataType type, int contributors) {
  return 2.0 * (contributors + 2) * contributors * unit_roundoff(type);
}

// The largest number of contributors for which the bound is below half a unit, which is what a missing rank changes.
int most_in_average(DataType type) { return static_cast<int>(std::sqrt(0.25 / unit_roundoff(type))) - 1; }

template <class T>
T as(double value) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::int64_t>(value));
  else
    return static_cast<T>(value);
}

}  // namespace

std::string_view name_of(Redop redop) {
  static constexpr const char* names[] = {"sum", "prod", "max", "min", "avg"};
  return names[static_cast<std::size_t>(redop)];
}

multinode::Reduction reduction_of(Redop redop) {
  using enum multinode::Reduction;
  static constexpr multinode::Reduction reductions[] = {sum, product, max, min, average};
  return reductions[static_cast<std::size_t>(redop)];
}

Values::Values(const Of& of) : of_(of), salt_(mix(of.seed * 0x9E3779B97F4A7C15u + mix(of.round + 1))) {
  const std::int64_t limit = largest(of.type);
  // Sets the smallest input value and the number of values.
  const auto range = [&](std::int64_t low, std::int64_t high) {
    low_ = low;
    values_ = static_cast<std::uint64_t>(high - low + 1);
  };
  contributors_ = of.ranks;
  neutral_ = 0;
  range(is_signed(of.type) ? -limit : 0, limit);
  if (!of.reduces) return;
  switch (of.redop) {
    case Redop::max:  // with many contributors, several would have the type's largest value nearly always
    case Redop::min:
      contributors_ = std::min(of.ranks, 64);
      neutral_ = of.redop == Redop::max ? low_ : limit;
      break;
    case Redop::prod:  // factors 1, 2, 3: at most 3^contributors
      contributors_ = std::min(of.ranks, static_cast<int>(std::log(static_cast<double>(limit)) / std::log(3.0)));
      neutral_ = 1;
      range(1, 3);
      break;
    case Redop::sum:
    case Redop::avg: {
      contributors_ = static_cast<int>(std::min<std::int64_t>(of.ranks, limit));
      if (rounded()) contributors_ = std::min(contributors_, most_in_average(of.type));
      const std::int64_t each = limit / contributors_;
      range(is_signed(of.type) ? -each : 0, each);
      break;
    }
  }
}

bool Values::rounded() const {
  return of_.reduces && of_.redop == Redop::avg && is_float(of_.type) &&
         !std::has_single_bit(static_cast<unsigned>(of_.ranks));
}

std::int64_t Values::element(int rank, int block, std::size_t index) const {
  const std::uint64_t i = index % period;
  if (contributors_ < of_.ranks) {  // a window of ranks that moves with the index
    const auto ranks = static_cast<std::uint64_t>(of_.ranks);
    if ((static_cast<std::uint64_t>(rank) + mix(salt_ + i)) % ranks >= static_cast<std::uint64_t>(contributors_))
      return neutral_;
  }
  const std::uint64_t where = (static_cast<std::uint64_t>(rank) << 40) ^ (static_cast<std::uint64_t>(block) << 20) ^ i;
  return low_ + static_cast<std::int64_t>(mix(salt_ ^ mix(where)) % values_);
}

double Values::expected(const Source& source, std::size_t index) const {
  if (source.rank >= 0) return static_cast<double>(element(source.rank, source.block, index));
  std::int64_t result = element(0, source.block, index);
  for (int rank = 1; rank < of_.ranks; ++rank) {
    const std::int64_t next = element(rank, source.block, index);
    result = of_.redop == Redop::prod  ? result * next
             : of_.redop == Redop::max ? std::max(result, next)
             : of_.redop == Redop::min ? std::min(result, next)
                                       : result + next;
  }
  if (of_.redop == Redop::avg && is_float(of_.type)) return static_cast<double>(result) / of_.ranks;
  if (of_.redop == Redop::avg) result /= of_.ranks;  // towards 0
  return static_cast<double>(result);
}

void Values::fill(std::span<std::byte> bytes, int rank, int block) const {
  multinode::with_type(of_.type, [&](auto zero) {
    using T = decltype(zero);
    const std::size_t first = std::min(period * sizeof(T), bytes.size());
    for (std::size_t i = 0; i < first / sizeof(T); ++i) {
      const T value = as<T>(static_cast<double>(element(rank, block, i)));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
    }
    for (std::size_t done = first; done < bytes.size();) {  // append a copy of what is there: doubles it each time
      const std::size_t more = std::min(done, bytes.size() - done);
      std::memcpy(bytes.data() + done, bytes.data(), more);
      done += more;
    }
  });
}

std::size_t Values::count_wrong(std::span<const std::byte> bytes, const Source& source, std::string* first) const {
  if (source.rank == Source::nothing) return 0;
  return multinode::with_type(of_.type, [&](auto zero) {
    using T = decltype(zero);
    const std::size_t count = bytes.size() / sizeof(T);
    std::vector<T> right(std::min(period, count));
    for (std::size_t i = 0; i < right.size(); ++i) right[i] = as<T>(expected(source, i));
    const bool rounded = source.rank == Source::all && this->rounded();
    const double bound =  // the largest element is -low_
        rounded ? average_bound(of_.type, contributors_) * static_cast<double>(-low_) / of_.ranks : 0;
    std::size_t wrong = 0;
    for (std::size_t begin = 0; begin < count; begin += period) {
      const std::size_t length = std::min(period, count - begin);
      const std::byte* piece = bytes.data() + begin * sizeof(T);
      if (std::memcmp(piece, right.data(), length * sizeof(T)) == 0) continue;
      for (std::size_t i = 0; i < length; ++i) {
        const std::byte* at = piece + i * sizeof(T);
        if (std::memcmp(at, reinterpret_cast<const std::byte*>(&right[i]), sizeof(T)) == 0) continue;
        T value;
        std::memcpy(&value, at, sizeof value);
        const double is = static_cast<double>(value), must = static_cast<double>(right[i]);
        if (rounded && std::abs(is - must) <= bound) continue;
        if (wrong++ == 0 && first) *first = fmt::format("element {} is {:.17g}, not {:.17g}", begin + i, is, must);
      }
    }
    return wrong;
  });
}

}  // namespace perf
