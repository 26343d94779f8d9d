// SPDX-License-Identifier: Apache-2.0
#include "hooks.hpp"

#include <multinode/base/check.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddp {
namespace {

// 0 times what is finite is 0, times anything else NaN. Several sums, so that they are computed side by side.
template <class T>
bool all_finite(std::span<const T> elements) {
  T sums[32] = {};
  std::size_t i = 0;
  for (; i + 32 <= elements.size(); i += 32)
    for (std::size_t j = 0; j < 32; ++j) sums[j] += elements[i + j] * T(0);
  T sum = 0;
  for (const T one : sums) sum += one;
  for (; i < elements.size(); ++i) sum += elements[i] * T(0);
  return sum == T(0);
}

// Calls function(elements) with the block's elements, of double or float.
template <class Function>
auto with_elements(multinode::Block block, Function function) {
  if (block.type == multinode::DataType::float64)
    return function(std::span(static_cast<double*>(block.data), block.count));
  return function(std::span(static_cast<float*>(block.data), block.count));
}

// Compression. What travels is x = s g, where g is a rank's gradient, s = 2^-k, and 2^k the smallest power of two that
// is not below the divisor d. So g is not rounded by it, and the sum over the ranks is between half of the mean
// gradient and the mean gradient itself: batches of any size overflow float16 (largest: 65504) only where the mean of
// the ranks' absolute gradients does, which is found after the reduction.
//
// The bound. Let u be the unit roundoff of the type (2^-11 for float16, 2^-8 for bfloat16) and e half of the distance
// of its smallest numbers (2^-25, 2^-134). Each x is rounded once, by u |x| or, if it is small, by e; a sum of two is
// computed in float and rounded by u, and not at all where it is small (Higham, Accuracy and Stability of Numerical
// Algorithms, 2nd ed., problem 2.19). P ranks are P - 1 additions, in any order, so the sum is wrong by at most
//   ((1 + u)^P - 1) sum |x| + P e (1 + u)^(P - 1),
// and the mean gradient, which is the sum times 1 / (s d) < 2, by
//   ((1 + u)^P - 1) mean|g| + 2 P e (1 + u)^(P - 1),
// plus what the rounding of T to float (below u 2^-12) and of the last product adds, which is below 1 % of it.
constexpr std::size_t piece = 1024;  // elements that stay in the first cache between two conversions

template <class Short, class T>
void compress(std::span<const T> from, T factor, Short* to) {
  float floats[piece];
  for (; !from.empty(); from = from.subspan(std::min(piece, from.size()))) {
    const std::size_t count = std::min(piece, from.size());
    for (std::size_t i = 0; i < count; ++i) floats[i] = static_cast<float>(from[i] * factor);
    multinode::convert(std::span<const float>(floats, count), {to, count});
    to += count;
  }
}

// Returns whether all of it is finite.
template <class Short, class T>
bool expand(const Short* from, T factor, std::span<T> to) {
  float floats[piece];
  bool finite = true;
  for (; !to.empty(); to = to.subspan(std::min(piece, to.size()))) {
    const std::size_t count = std::min(piece, to.size());
    multinode::convert(std::span<const Short>(from, count), {floats, count});
    finite = finite && all_finite(std::span<const float>(floats, count));
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(floats[i]) * factor;
    from += count;
  }
  return finite;
}

// A reduction in progress: wait() puts the sum where the gradients were.
template <class Short, class T>
class Travelling : public multinode::Work::State {
 public:
  Travelling(const AllReduce& reduce, std::span<T> gradients, Short* there, std::size_t divisor, const char* name)
      : gradients_(gradients),
        there_(there),
        factor_(static_cast<T>(std::ldexp(1, -static_cast<int>(std::bit_width(divisor - 1))))),
        name_(name) {
    compress<Short, T>(gradients, factor_, there);
    work_ = reduce(std::span(there, gradients.size()), divisor, name);
  }
  void wait() override {
    work_.wait();
    if (!expand(there_, 1 / factor_, gradients_))
      throw std::runtime_error(
          std::string(name_) + ": the sum is not finite in " +
          (std::is_same_v<Short, multinode::half> ? "float16; bfloat16 has the range of float" : "bfloat16"));
  }

 private:
  std::span<T> gradients_;
  Short* there_;
  T factor_;
  const char* name_;
  multinode::Work work_;
};

template <class Short>
AllReduce compressed_as(AllReduce reduce) {
  // What travels in place of a block, in every step; by the address of the block.
  const auto buffers = std::make_shared<std::map<const void*, std::vector<Short>>>();
  return [reduce = std::move(reduce), buffers](multinode::Block block, std::size_t divisor, const char* name) {
    std::vector<Short>& buffer = (*buffers)[block.data];
    buffer.resize(std::max(buffer.size(), block.count));
    return with_elements(block, [&]<class T>(std::span<T> gradients) {
      return multinode::Work(std::make_unique<Travelling<Short, T>>(reduce, gradients, buffer.data(), divisor, name));
    });
  };
}

}  // namespace

void require_finite(const std::string& what, multinode::Block block) {
  with_elements(block, [&]<class T>(std::span<T> elements) {
    if (all_finite<T>(elements)) return;
    const auto bad = std::ranges::find_if_not(elements, [](T x) { return std::isfinite(x); });
    throw std::runtime_error("element " + std::to_string(bad - elements.begin()) + " of " + what + " is " +
                             (std::isnan(*bad) ? "NaN" : "infinite"));
  });
}

Compression parse_compression(std::string_view name) {
  if (name == "none") return Compression::none;
  if (name == "float16") return Compression::float16;
  if (name == "bfloat16") return Compression::bfloat16;
  throw multinode::UsageError("--compression must be none, float16 or bfloat16, not '" + std::string(name) + "'");
}

ErrorBound error_bound(Compression type, int ranks) {
  if (type == Compression::none) return {};
  const bool is_float16 = type == Compression::float16;
  const double u = is_float16 ? 0x1p-11 : 0x1p-8, e = is_float16 ? 0x1p-25 : 0x1p-134;
  const double grown = std::pow(1 + u, ranks);
  return {1.01 * (grown - 1), 1.01 * 2 * ranks * e * grown / (1 + u)};
}

AllReduceHook compressed(Compression type) {
  if (type == Compression::none) return nullptr;
  return [type](AllReduce reduce) {
    return type == Compression::float16 ? compressed_as<multinode::half>(std::move(reduce))
                                        : compressed_as<multinode::bfloat16>(std::move(reduce));
  };
}

}  // namespace ddp
