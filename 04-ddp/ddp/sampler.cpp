// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include "philox.hpp"

#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddp {

DistributedSampler::DistributedSampler(std::size_t samples, std::size_t global_batch, int rank, int size,
                                       std::uint64_t seed, Remainder remainder)
    : samples_(samples),
      global_batch_(global_batch),
      rank_(static_cast<std::size_t>(rank)),
      size_(static_cast<std::size_t>(size)),
      seed_(seed),
      remainder_(remainder) {
  if (samples == 0 || samples > std::numeric_limits<std::uint32_t>::max() || global_batch == 0 || rank < 0 ||
      rank >= size)
    throw std::logic_error("DistributedSampler: no samples, no batch, or no such rank");
  if (remainder == Remainder::drop && samples < global_batch)
    throw std::logic_error("DistributedSampler: fewer samples than a batch, and the remainder is dropped");
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::uint32_t epoch) {
  order_.resize(samples_);
  std::iota(order_.begin(), order_.end(), std::uint32_t{0});
  for (auto i = static_cast<std::uint32_t>(samples_ - 1); i > 0; --i) {  // Fisher and Yates
    const PhiloxWords random = philox({i, stream_sampler, epoch, 0}, seed_);
    const std::uint64_t wide = std::uint64_t{random[0]} << 32 | random[1];
    // wide * (i + 1) / 2^64 in 96 bits: one of 0 ... i, uniform but for less than 2^-32
    const std::uint64_t low = (wide & 0xffffffffu) * (std::uint64_t{i} + 1);
    const std::uint64_t high = (wide >> 32) * (std::uint64_t{i} + 1) + (low >> 32);
    std::swap(order_[i], order_[high >> 32]);
  }
  last_ = 0;
  if (remainder_ == Remainder::drop) order_.resize(samples_ / global_batch_ * global_batch_);
}

std::span<const std::uint32_t> DistributedSampler::global_batch(std::size_t step) const {
  if (step >= steps()) throw std::logic_error("DistributedSampler: no such step in an epoch");
  const std::size_t begin = step * global_batch_;
  return std::span(order_).subspan(begin, std::min(global_batch_, order_.size() - begin));
}

std::span<const std::uint32_t> DistributedSampler::local_batch(std::size_t step) {
  const std::span<const std::uint32_t> all = global_batch(step);
  if (step < last_)
    throw std::logic_error("DistributedSampler::local_batch(): step " + std::to_string(step) + " after step " +
                           std::to_string(last_) + " without set_epoch(): every epoch would have the same order");
  last_ = step;
  const Range part = part_of(all.size(), rank_, size_);
  return all.subspan(part.begin, part.end - part.begin);
}

}  // namespace ddp
