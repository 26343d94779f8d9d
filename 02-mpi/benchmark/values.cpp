#include "values.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

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

}  // namespace

Values::Values(const Of& of) : of_(of), salt_(mix(of.seed * 0x9E3779B97F4A7C15u + mix(of.round + 1))) {
  std::int64_t high = largest(of.type);
  contributors_ = of.ranks;
  if (of.sums) {
    contributors_ = static_cast<int>(std::min<std::int64_t>(of.ranks, high));
    high /= contributors_;
  }
  low_ = is_signed(of.type) ? -high : 0;
  values_ = static_cast<std::uint64_t>(high - low_ + 1);
}

std::int64_t Values::element(int rank, int block, std::size_t index) const {
  const std::uint64_t i = index % period;
  if (contributors_ < of_.ranks) {  // a window of ranks that moves with the index
    const auto ranks = static_cast<std::uint64_t>(of_.ranks);
    if ((static_cast<std::uint64_t>(rank) + mix(salt_ + i)) % ranks >= static_cast<std::uint64_t>(contributors_))
      return 0;
  }
  const std::uint64_t where = (static_cast<std::uint64_t>(rank) << 40) ^ (static_cast<std::uint64_t>(block) << 20) ^ i;
  return low_ + static_cast<std::int64_t>(mix(salt_ ^ mix(where)) % values_);
}

std::int64_t Values::expected(const Source& source, std::size_t index) const {
  if (source.rank != Source::all) return element(source.rank, source.block, index);
  std::int64_t sum = 0;
  for (int rank = 0; rank < of_.ranks; ++rank) sum += element(rank, source.block, index);
  return sum;
}

void Values::fill(std::span<std::byte> bytes, int rank, int block) const {
  multinode::with_type(of_.type, [&](auto zero) {
    using T = decltype(zero);
    const std::size_t first = std::min(period * sizeof(T), bytes.size());
    for (std::size_t i = 0; i < first / sizeof(T); ++i) {
      const T value = static_cast<T>(element(rank, block, i));
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
  return multinode::with_type(of_.type, [&](auto zero) {
    using T = decltype(zero);
    const std::size_t count = bytes.size() / sizeof(T);
    std::vector<T> right(std::min(period, count));
    for (std::size_t i = 0; i < right.size(); ++i) right[i] = static_cast<T>(expected(source, i));
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
        if (wrong++ == 0 && first)
          *first = fmt::format("element {} is {:.17g}, not {:.17g}", begin + i, static_cast<double>(value),
                               static_cast<double>(right[i]));
      }
    }
    return wrong;
  });
}

}  // namespace perf
